"""The experiment: what a YAML file says, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hooks.interval import Interval
from orchestrator.config.checks.metric_modes import inferred_modes
from orchestrator.config.checks.other_systems import EXPERIMENT
from orchestrator.config.optim.parameter_groups import Patterns
from orchestrator.config.python.objects import folders_of, task_to_config, to_config
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.initial_weights import Init
from orchestrator.config.sections.sweep import Seed, Sweep
from orchestrator.config.sections.workers import Workers
from orchestrator.config.text.source import ExperimentSource, with_value
from orchestrator.errors import ConfigError, Problem, UsageError, collect_problems

LONGEST_NAME_BYTES = 200
"""File systems take 255, and names of trials and of files being written are longer than the run's own."""


def _short(name: str) -> str:
    if len(name.encode()) > LONGEST_NAME_BYTES:
        raise ValueError(f"is {len(name.encode())} bytes long, and may have {LONGEST_NAME_BYTES}")
    return name


RunName = Annotated[str, Field(pattern=r"^\w[\w.-]*$"), AfterValidator(_short)]

BatchSize = Annotated[int, Ge(1), Lt(2**31)]


class Component(Model):
    """Something named by `type`, with its own parameters beside it."""

    model_config = ConfigDict(extra="allow")

    type: str
    """A class of torch.optim (or torch.optim.lr_scheduler), or `module:Class`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What stands beside `type`."""
        return dict(self.model_extra or {})


Scheduler = Annotated[
    Annotated[Component, Tag("one")] | Annotated[list[Component], Field(min_length=1), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "one"),
]
"""One scheduler, or several with the part of the run that each acts in."""


class NamedOptimizer(Component):
    """One of several optimizers: its class and arguments, what it trains, and its scheduler."""

    params: Patterns | None = None
    """Which parameters it trains, by patterns of their names with * and ?; where it is not said, the task's
    `parameters` does."""
    scheduler: Scheduler | None = None
    """Its scheduler, or a list of them."""


@dataclass(frozen=True)
class Optimization:
    """An optimizer and its scheduler, as they are written; a task that takes turns has several, by name."""

    name: str
    """Empty for the one of an experiment that has one."""
    optimizer: Component
    scheduler: Scheduler | None = None
    patterns: tuple[str, ...] = ()
    """Which parameters it trains; of the one it is all."""

    @property
    def path(self) -> str:
        """Where in an experiment the optimizer stands."""
        return f"optimizers.{self.name}" if self.name else "optimizer"

    @property
    def scheduler_path(self) -> str:
        """Where its scheduler does."""
        return f"optimizers.{self.name}.scheduler" if self.name else "scheduler"

    @classmethod
    def named(cls, name: str, written: NamedOptimizer) -> Self:
        """One of several."""
        optimizer = Component(**{"type": written.type, **written.arguments})
        patterns = (written.params,) if isinstance(written.params, str) else tuple(written.params or ())
        return cls(name, optimizer, written.scheduler, patterns)


class Loader(Model):
    """Options of the data loaders."""

    num_workers: Annotated[int, Ge(0)] = 0
    """Processes that fetch data for each rank; 0 fetches in the training process."""
    pin_memory: bool | None = None
    """Page-locks batches, so that they are copied to a GPU beside its work; by default, if there is a GPU."""
    eval_batch_size: BatchSize | None = None
    """Samples in a batch of val and test; by default those of a training batch."""
    drop_last: bool = False
    """Leaves out the last training batch of an epoch when it is smaller than the others."""
    on_exhausted: Literal["restart", "stop"] = "restart"
    """What comes where a rank's part of a stream is used up before the run is over: its beginning again, or the end of
    training on all ranks."""


class Scaler(Model):
    """How fp16 scales the loss: torch's GradScaler."""

    init_scale: Annotated[float, Gt(0)] = 65536.0
    """What the loss is multiplied by at first."""
    growth_factor: Annotated[float, Gt(1)] = 2.0
    """What the scale is multiplied by after `growth_interval` steps in a row without an overflow."""
    backoff_factor: Annotated[float, Gt(0), Lt(1)] = 0.5
    """What it is multiplied by after an overflow."""
    growth_interval: Annotated[int, Ge(1)] = 2000
    """Steps without an overflow before the scale grows."""


class Compile(Model):
    """Arguments of torch.compile."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """How torch compiles: `reduce-overhead` replays CUDA graphs, for small models on a GPU."""


class Hang(Model):
    """When a rank counts as hung, and what follows."""

    after: Annotated[float, Ge(1), Lt(2**31)] = 300.0
    """Seconds without an iteration. A phase's first iteration, which may compile, gets five times as many, and so does
    everything between iterations, such as a checkpoint."""
    action: Literal["warn", "fail"] = "warn"
    """`warn` reports which rank hangs where, and which ranks wait for it. `fail` also ends its process, which counts as
    a lost one: see `max_failures`."""


class Change(Model):
    """A change while the run goes on."""

    at: Interval
    """When: after this many epochs or optimizer steps are completed, before the next iteration."""
    set: Annotated[dict[str, Any], Field(min_length=1)]
    """Dotted path to the new value: a field that its hook calls mutable, such as `hooks.ema.decay`, or a number of the
    optimizer, such as `optimizer.lr`, whose schedule is scaled with it."""


def parse_optimizer_path(path: str) -> tuple[str, str] | None:
    """The name of an optimizer, and the path below it of what may be one of its numbers, its groups' too; None of any
    other path."""
    first, *keys = path.split(".")
    name = keys.pop(0) if first == "optimizers" and keys else ""
    of_a_group = len(keys) == 3 and keys[0] == "groups" and keys[1].isdecimal() and keys[2] != "match"
    is_number = of_a_group or (len(keys) == 1 and keys[0] not in ("", "type", "groups", "params", "scheduler"))
    return (name, ".".join(keys)) if is_number and (first == "optimizer" or name) else None


def without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data without what is null at the top, which is as good as not said; but for the scheduler, of which it is to
    have none, the task's neither."""
    return {key: value for key, value in data.items() if value is not None or key == "scheduler"}


def with_default_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """Arguments without a `type` are those of the default optimizer: `optimizer: {lr: 0.5}`."""
    given = data.get("optimizer", {})
    if not isinstance(given, dict) or "type" in given:
        return data
    default: Component = Experiment.model_fields["optimizer"].default
    return {**data, "optimizer": {"type": default.type, **default.arguments, **given}}


def wrong_length(epochs: object, steps: object) -> str | None:
    """What is wrong where the length of training is given twice or not at all."""
    if epochs is not None and steps is not None:
        return "has both epochs and steps; say one of them (epochs=null takes the other away)"
    return "has neither epochs nor steps; say how long to train" if epochs is None and steps is None else None


def _as_written(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a file would say of values given in Python; of a task that is an object, its fields are the arguments."""
    problems: list[Problem] = []
    rest = {name: value for name, value in given.items() if name != "task"}
    written: dict[str, Any] = collect_problems(problems, to_config, rest) or {}
    task = collect_problems(problems, task_to_config, given["task"]) if given.get("task") is not None else {}
    if task and "task_args" in task and "task_args" in given:
        problems.append(
            Problem("task_args", "are the fields of the task that is given, and said beside it too; say them once")
        )
    if problems:
        raise ConfigError(problems)
    return {**(task or {}), **written}


def _in_shape(written: Mapping[str, Any]) -> dict[str, Any]:
    """What is written as the experiment's own fields say it, before what it names is looked at."""
    data = with_default_optimizer(without_nulls(written))
    for path, mode in inferred_modes(data).items():
        data = with_value(data, path, mode)
    return data


def _snake_case(name: str) -> str:
    """`DigitsByHand` as `digits_by_hand`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Experiment(Model):
    """One experiment: task, training, hooks, workers.

    In Python `task` may be a class or an object of it, hooks are classes, objects or mappings, the optimizer's `type`
    is a class or its name; where the name is not said, it is that of the task's class.
    """

    name: RunName
    """Names the run's folder: letters, digits, `_`, `-` and `.`, in 200 bytes."""
    task: str
    """The task's class, as `module:Class`."""
    task_args: dict[str, Any] = Field(default_factory=dict)
    """The task's fields."""
    epochs: Annotated[int, Ge(1)] | None = None
    """Passes over the training data; say this or `steps`."""
    steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps; say this or `epochs`."""
    epoch_steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps that are called an epoch, of training data that is a stream."""
    batch_size: BatchSize = 32
    """Samples in a batch of each worker."""
    optimizer: Component = Component.model_validate({"type": "SGD", "lr": 0.1})
    """The optimizer: a class of torch.optim or `module:Class`, and its arguments; without `type`, SGD's. `groups` says
    what is otherwise for some of the parameters."""
    scheduler: Scheduler | None = None
    """The learning-rate scheduler: a class of torch.optim.lr_scheduler or `module:Class`, and its arguments; or a list
    of them, each with `begin`, `end` and `every`."""
    optimizers: dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], NamedOptimizer] = Field(default_factory=dict)
    """Several optimizers by name instead, for a task that takes turns: each with its class and arguments, `params` and
    `scheduler`."""
    init: Init | None = None
    """What the model's weights are as training begins: those of another run, or of a file. What a task's `model()`
    gives, where nothing is said."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the forward pass computes in; fp16 scales the loss."""
    scaler: Scaler = Scaler()
    """How fp16 scales the loss: torch's GradScaler."""
    channels_last: bool = False
    """Keeps the weights of convolutions, and with them all images, in the order that GPUs with tensor cores compute
    in."""
    sync_batchnorm: bool = False
    """Normalizes by the batches of all ranks together: BatchNorm layers become torch's SyncBatchNorm, which needs
    GPUs."""
    activation_checkpointing: Patterns | None = None
    """Parts of the model, by patterns of their names with * and ?, whose activations are computed again in the backward
    pass instead of kept."""
    compile: Annotated[
        Annotated[bool, Tag("word")] | Annotated[Compile, Tag("group")],
        Discriminator(lambda value: "group" if isinstance(value, dict | Compile) else "word"),
    ] = False
    """Compiles the model (torch.compile), or the parts of it that the task calls, under fsdp each unit, in place: names
    of parameters and checkpoints stay as they are. A mapping has torch's `mode`."""
    deterministic: bool = False
    """Uses algorithms alone that give the same numbers each time (torch.use_deterministic_algorithms); slower, and what
    has none is an error."""
    cudnn_benchmark: bool = False
    """Lets cuDNN time its algorithms for each shape of input, and use the fastest."""
    float32_matmul_precision: Literal["highest", "high", "medium"] | None = None
    """How exact matrix products of float32 are: torch's set_float32_matmul_precision, which is `highest` where neither
    this nor the task says another."""
    accumulate: Annotated[int, Ge(1)] | Literal["auto"] = 1
    """Micro-batches in one optimizer step; `auto` is one, which is gone through in pieces where memory runs out, to the
    same gradients."""
    validate_every: Interval = Interval(1)
    """How often the val phase runs: `1` or `2 epochs`, `100 steps`, 0 for never."""
    seed: Seed = 0
    """Seeds weights, data order and everything random."""
    max_failures: Annotated[int, Ge(-1)] = 3
    """How often a run whose worker died is started again from its last checkpoint; -1 is without limit."""
    hang: Hang = Hang()
    """When a rank counts as hung, and what follows."""
    loader: Loader = Loader()
    """Options of the data loaders."""
    workers: Workers = Workers()
    """The processes of one run."""
    upload_interval_s: Annotated[float, Ge(1)] = 30
    """Seconds between two uploads of a rank's rows to an object store (`s3://...`) while it trains; in a folder rows
    can be read within a second, whatever this says."""
    environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = Field(default_factory=list)
    """Names of environment variables that workers on a cluster get from where the run is started, such as API keys;
    their values are written down nowhere."""
    tags: list[str] = Field(default_factory=list)
    """Words by which `ls` finds its runs; `hookyard note` changes a run's."""
    notes: str = ""
    """What to know of its runs; `ls` shows it, and `hookyard note` changes a run's."""
    hooks: dict[str, dict[str, Any] | bool | None] = Field(default_factory=dict)
    """Hooks by name, the defaults included once it is loaded; null or false switches one off."""
    changes: list[Change] = Field(default_factory=list)
    """What changes while the run goes on, and when: a schedule of values, such as one that PBT found."""
    sweep: Sweep | None = None
    """How to sweep, where this is a sweep."""

    _source: ExperimentSource | None = PrivateAttr(default=None)
    """What was written of it; None while it is being resolved."""
    _is_resolved: bool = PrivateAttr(default=False)

    if TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            """Fields take what stands for them in Python, too, such as classes."""

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        message = wrong_length(self.epochs, self.steps)
        if message:
            raise ValueError(message)
        return self

    @property
    def micro_batches(self) -> int:
        """Batches of the loader in one optimizer step."""
        return 1 if self.accumulate == "auto" else self.accumulate

    @property
    def optimizations(self) -> dict[str, Optimization]:
        """Optimizers and their schedulers by name; where there is one, its name is empty."""
        one = {"": Optimization("", self.optimizer, self.scheduler)}
        return {name: Optimization.named(name, written) for name, written in self.optimizers.items()} or one

    def __eq__(self, other: object) -> bool:
        """Whether two experiments say the same, wherever they were read."""
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    # As for any class with an `__eq__`; pydantic would give a frozen one a hash, of fields that have none.
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_python(cls, given: Mapping[str, Any]) -> Self:
        """The experiment that has these values, as far as it is right by itself; its classes are found among those that
        are imported, in the folders of these, and from where it is called. Raises ConfigError."""
        written = _as_written(given)
        task = written.get("task", "experiment")
        written = {"name": _snake_case(task.rpartition(":")[2]), **written}
        made = check(cls, _in_shape(written), "", EXPERIMENT)
        made._source = ExperimentSource.from_data(written, [Path.cwd(), *folders_of(written)])
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Another experiment, with these values over what was written; raises ConfigError."""
        if not update or self._source is None:
            return super().model_copy(update=update, deep=deep)
        written = _as_written(update)
        copied = check(type(self), _in_shape({**self.model_dump(mode="json"), **written}), "", EXPERIMENT)
        folders = [*self._source.import_paths, *map(str, folders_of(written))]
        copied._source = replace(self._source.with_values(written), import_paths=tuple(dict.fromkeys(folders)))
        return copied

    @property
    def source(self) -> ExperimentSource:
        """What was written of it; of one that pydantic made, what that was given."""
        return self._source or ExperimentSource(self.model_dump(mode="json", exclude_unset=True))

    @property
    def import_paths(self) -> tuple[str, ...]:
        """Folders appended to the import path, here and on every worker: where the YAML lies, and where it was
        called."""
        return self.source.import_paths


def check_run_name(experiment: Experiment, given: str | None) -> str:
    """What a run is called: as its file says, or as was given beside it, by the same rule; raises UsageError."""
    if given is None:
        return experiment.name
    try:
        return TypeAdapter(RunName).validate_python(given, strict=True)
    except ValidationError as error:
        shown = given if len(str(given)) <= 40 else f"{str(given)[:40]}..."
        raise UsageError(
            f"name {shown!r} cannot be a run's: it names a folder in the storage, and is made of letters, digits, '_',"
            f" '-' and '.', begins with none of the last two, and has {LONGEST_NAME_BYTES} bytes at most"
        ) from error
