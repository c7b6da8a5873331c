"""The experiment: the content of a YAML file, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import Field, PrivateAttr, model_validator

from hooks.duration import Duration
from hooks.interval import Interval
from hooks.needs import Needs
from hooks.parameter_names import Patterns
from orchestrator.errors import Problem
from orchestrator.experiment.fields.field_errors import make_value_error
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.from_python import add_values, convert_values, make_source
from orchestrator.experiment.optim.component import (
    DEFAULT_OPTIMIZER,
    Component,
    LRSchedulers,
    NamedOptimizer,
)
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.sections.notify import Notify
from orchestrator.experiment.sections.run_name import RunName
from orchestrator.experiment.sections.sweep import Seed, SweepSettings
from orchestrator.experiment.sections.training import (
    BatchSize,
    Change,
    CompileSetting,
    Hang,
    Loader,
    Scaler,
)
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource


def find_length_problem(epochs: object, steps: object) -> Problem | None:
    """Return a problem unless exactly one of epochs and steps is set."""
    if epochs is not None and steps is not None:
        return Problem(
            "steps",
            "cannot be combined with epochs; remove one of them (or set it to null to override a base)",
        )
    if epochs is None and steps is None:
        return Problem("", "neither epochs nor steps is set; set one of them")
    return None


class Experiment(Model):
    """An experiment: task, training, hooks, workers.

    In Python `task` may be a class or an instance, hooks may be classes, instances or mappings, and
    the optimizer's `type` a class. The name defaults to that of the task's class.
    """

    name: RunName
    """Name of the run's folder: letters, digits, `_`, `-` and `.`, at most 200 bytes. `--name`
    overrides it."""
    task: str
    """The task's class, as `module:Class`."""
    task_args: dict[str, Any] = Field(default_factory=dict)
    """Values for the task's fields."""
    epochs: Annotated[int, Ge(1)] | None = None
    """Passes over the training data. Set either this or `steps`."""
    steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps of the run. Set either this or `epochs`."""
    epoch_steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps in an epoch, for an iterable dataset, which has no length."""
    batch_size: BatchSize = 32
    """Samples in a batch of each rank."""
    optimizer: Component = DEFAULT_OPTIMIZER
    """The optimizer: `type` is a class of torch.optim or `module:Class`, and its arguments stand
    beside it. Without `type`, they are arguments of the task's own optimizer, or of SGD. `groups`
    sets other arguments for some of the parameters."""
    scheduler: LRSchedulers | None = None
    """The learning-rate scheduler: a class of torch.optim.lr_scheduler or `module:Class`, and its
    arguments; or a list of them, each with `begin`, `end` and `every`. The hook `param_scheduler`
    steps it, by default once an epoch."""
    optimizers: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], NamedOptimizer] = Field(
        default_factory=dict
    )
    """Several optimizers by name, for a task with `turns`: each with `type`, its arguments,
    `params`, `groups` and `scheduler`. If a list of schedulers counts steps, single schedulers step
    at each step too."""
    init: Init | None = None
    """Initial weights from another run or a file; by default those of the task's `model()`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass and the loss, by torch's autocast. `fp16` scales the loss."""
    scaler: Annotated[Scaler, Needs("precision", "fp16")] = Scaler()
    """Options of torch's GradScaler, with `precision: fp16`."""
    channels_last: bool = False
    """Stores convolution weights, and with them all images, in the memory format that tensor cores
    prefer."""
    sync_batchnorm: bool = False
    """Normalizes over the batches of all ranks: BatchNorm layers become torch's SyncBatchNorm,
    which needs GPUs. Take it if the batch of one rank is too small for its statistics."""
    activation_checkpointing: Patterns | None = None
    """Patterns, with * and ?, of modules that save memory by recomputing activations in the
    backward pass, such as `["blocks.*"]`."""
    compile: CompileSetting = False
    """Compiles the model in place with torch.compile, or the modules that the task calls; under
    fsdp, each unit. Names of parameters and checkpoints do not change. A mapping sets torch's
    `mode`."""
    deterministic: bool = False
    """Uses only algorithms that repeat bit for bit (torch.use_deterministic_algorithms). They are
    slower, and an operation without such an algorithm is an error."""
    cudnn_benchmark: Annotated[bool, Needs("workers.gpu")] = False
    """Lets cuDNN time its algorithms for each input shape and use the fastest. The choice, and with
    it the numbers, may differ between runs."""
    float32_matmul_precision: Literal["highest", "high", "medium"] | None = None
    """Precision of float32 products (torch.set_float32_matmul_precision); `high` is TF32. By
    default it stays what the task sets, or `highest`."""
    accumulate: Annotated[int, Ge(1)] | Literal["auto"] = 1
    """Batches in one optimizer step; the last step of an epoch may have fewer. `auto` splits a
    batch only where memory runs out, with the same gradients."""
    validate_every: Interval = Interval(1)
    """Interval between validations: `1` or `2 epochs`, `100 steps`, 0 for never."""
    seed: Seed = 0
    """Seed of the weights, of the order of the data and of everything else that is random."""
    max_failures: Annotated[int, Ge(-1)] = 3
    """How often the run restarts from its last checkpoint after it has lost a worker; -1 is
    unlimited."""
    max_preemptions: Annotated[int, Ge(-1)] = -1
    """How often the run moves to other nodes after a warning that a node is about to be preempted;
    -1 is unlimited. Such a restart repeats no step."""
    hang: Hang = Hang()
    """When a rank counts as hanging, and what happens then."""
    loader: Loader = Loader()
    """Options of the loaders that Hookyard makes for the task's datasets."""
    workers: Workers = Workers()
    """The processes of the run: their number, and the resources of each."""
    upload_every: Annotated[Duration, Ge(1)] = 30.0
    """Time between uploads of a rank's rows to an object store, in seconds or as `2m`. In a folder
    rows appear within a second."""
    environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = Field(
        default_factory=list
    )
    """Names of environment variables that the workers get from the process that starts the run,
    such as those of API keys. Their values are never saved, and an unset variable is an error."""
    tags: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Words by which `hookyard ls --tag` finds the run. `hookyard note RUN --tag` changes them."""
    notes: str = ""
    """A note that `hookyard ls` shows. `hookyard note RUN "..."` changes it."""
    notify: Notify | None = None
    """Alerts about the run or the sweep, to an HTTP server or a command."""
    hooks: dict[str, Any] = Field(default_factory=dict)
    """Hooks by name, each with its fields. `null` or `false` switches off a default hook, and `{}`
    or `true` switches a hook on with the defaults of its fields."""
    changes: list[Change] = Field(default_factory=list)
    """Values to change during the run, and when, such as a schedule that PBT found."""
    sweep: SweepSettings | None = None
    """The sweep over this experiment. With it, the file is run by `hookyard sweep`."""

    _source: ExperimentSource | None = PrivateAttr(default=None)
    """What it was made from; None while a file is read."""

    def __init__(self, **values: Any) -> None:
        """Check the fields, not yet the classes that they name; raise ConfigError.

        Classes are imported from their own folders and the one that is current now.
        """
        self._read(convert_values(values))
        self._source = make_source(self._list_written())

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # as in `Model`

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        problem = find_length_problem(self.epochs, self.steps)
        if problem:
            raise make_value_error(problem.path, problem.message)
        return self

    @property
    def micro_batches(self) -> int:
        """Batches of the loader in one optimizer step."""
        return 1 if self.accumulate == "auto" else self.accumulate

    def __eq__(self, other: object) -> bool:
        """Compare content, wherever the experiments were read."""
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    # As for any class with an `__eq__`; pydantic would give a frozen one a hash, of fields that
    # have none.
    __hash__ = None  # type: ignore[assignment]

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Experiment:
        """Return a copy with other values.

        Args:
            update: Values by key, over the written ones.
            deep: Copy the values too, as pydantic does; a copy with other values always has its own.

        Returns:
            The experiment.

        Raises:
            ConfigError: If a value is wrong.
        """
        if not update:
            return super().model_copy(deep=deep)
        present = self._list_written()
        data = convert_values(update, present)
        # A copy of a checked experiment is not checked.
        copy = validate(Experiment, {**present, **data}, "")
        return copy if self._source is None else copy.with_source(add_values(self._source, data))

    def with_valid_values(self, **values: Any) -> Self:
        """Return a copy with other values, which are not checked, and the same source.

        Args:
            **values: Values of fields by name, as a check of the experiment returns them.

        Returns:
            The copy.
        """
        return super().model_copy(update=values)

    def with_source(self, source: ExperimentSource) -> Self:
        """Return a copy that was read from `source`, which has its values.

        Args:
            source: The source, from which a worker makes the experiment again.

        Returns:
            The copy.
        """
        copy = super().model_copy()
        copy._source = source
        return copy

    @property
    def source(self) -> ExperimentSource:
        """The experiment as written, from which workers and trials make it again."""
        return self._source or make_source(self._list_written())

    def _list_written(self) -> dict[str, Any]:
        """Return the values that are not left at their defaults, as those of a file."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def import_paths(self) -> tuple[str, ...]:
        """Folders added to the import path: the YAML file's, and the current one."""
        return self.source.import_paths
