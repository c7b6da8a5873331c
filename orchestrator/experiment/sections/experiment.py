"""The experiment: the content of a YAML file, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from annotated_types import Ge, Gt, Lt
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    model_validator,
)

from hooks.hook import Needs
from hooks.interval import Duration, Interval
from hooks.parameter_names import Patterns, list_patterns
from orchestrator.errors import ConfigError, Problem, UsageError, collect_problems, shorten
from orchestrator.experiment.fields.field_errors import (
    locate_error,
    make_value_error,
    without_refused_nulls,
)
from orchestrator.experiment.fields.messages import convert_errors
from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.fields.plain_data import convert_task, list_import_folders, to_config
from orchestrator.experiment.sections.base import Model
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.sections.sweep import Seed, Sweep
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource, to_plain_data

MAX_NAME_BYTES = 200
"""File systems allow 255, and names of trials and of files being written are longer than the run's
own."""


_NAME_RULE = (
    "must contain only letters, digits, `_`, `-` and `.`, must not begin with `-` or `.`,"
    f" and must be at most {MAX_NAME_BYTES} bytes long"
)


def _check_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{_NAME_RULE}, got {shorten(repr(name))}")
    return name


RunName = Annotated[
    str, AfterValidator(_check_name), Field(json_schema_extra={"pattern": r"^\w[\w.-]*$"})
]

BatchSize = Annotated[int, Ge(1), Lt(2**31)]


FROM_TASK = "task"
"""The `type` of an optimizer or scheduler that the task's own method creates."""


class Component(Model):
    """A class named by `type`, with its own arguments beside it; a null means the default of a
    class of torch."""

    model_config = ConfigDict(extra="allow")

    type: str = ""
    """A class of torch.optim (or torch.optim.lr_scheduler), or `module:Class`."""

    @model_validator(mode="after")
    def _drop_nulls(self) -> Self:
        if self.type in ("", FROM_TASK) or ":" in self.type:  # a custom class may read a null
            return self
        arguments = self.model_extra or {}
        # `{lr:0.1}` is a null too, which is an error later.
        for key in [key for key, value in arguments.items() if value is None and ":" not in key]:
            del arguments[key]
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments beside `type`."""
        return dict(self.model_extra or {})


LRSchedulers = Annotated[
    Annotated[Component, Tag("one")] | Annotated[list[Component], Field(min_length=1), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "one"),
]
"""One learning-rate scheduler, or several, each for its part of the run."""


class NamedOptimizer(Component):
    """An optimizer among several: its class and arguments, its parameters, and its scheduler."""

    params: Patterns | None = None
    """Patterns, with * and ?, of the names of its parameters; by default the task's `parameters`
    selects them."""
    scheduler: LRSchedulers | None = None
    """Its scheduler, or a list of schedulers."""


@dataclass(frozen=True)
class Optimization:
    """An optimizer and its scheduler, as written."""

    name: str
    """Empty for the only optimizer of an experiment."""
    optimizer: Component
    scheduler: LRSchedulers | None = None
    patterns: tuple[str, ...] = ()
    """Patterns of its parameters; the only optimizer trains all."""

    @property
    def path(self) -> str:
        return f"optimizers.{self.name}" if self.name else "optimizer"

    @property
    def scheduler_path(self) -> str:
        return f"optimizers.{self.name}.scheduler" if self.name else "scheduler"

    @property
    def schedulers(self) -> dict[str, Component]:
        """Schedulers by dotted path: none, one, or those of a list."""
        if isinstance(self.scheduler, list):
            return {
                f"{self.scheduler_path}.{index}": entry
                for index, entry in enumerate(self.scheduler)
            }
        return {self.scheduler_path: self.scheduler} if self.scheduler else {}


class Loader(Model):
    """Options of the data loaders."""

    num_workers: Annotated[int, Ge(0)] = 0
    """Loader processes of each rank; with 0 the training process loads the data."""
    pin_memory: bool | None = None
    """Page-locks batches, so that copies to a GPU overlap with its work; by default only with a
    GPU."""
    eval_batch_size: BatchSize | None = None
    """Samples in a batch of val and test; by default `batch_size`."""
    drop_last: bool = False
    """Drops the last training batch of an epoch if it is smaller than the others."""
    on_exhausted: Literal["restart", "stop"] = "restart"
    """Action when a rank's part of a stream is exhausted: `restart` the part, or `stop` training on
    all ranks."""


class Scaler(Model):
    """Options of torch's GradScaler, which scales the loss under fp16."""

    init_scale: Annotated[float, Gt(0)] = 65536.0
    """Initial factor of the loss."""
    growth_factor: Annotated[float, Gt(1)] = 2.0
    """Factor of the scale after `growth_interval` consecutive steps without an overflow."""
    backoff_factor: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Factor of the scale after an overflow."""
    growth_interval: Annotated[int, Ge(1)] = 2000
    """Steps without an overflow before the scale grows."""


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class Compile(Model):
    """Arguments of torch.compile."""

    mode: CompileMode = "default"
    """Mode of torch.compile: `reduce-overhead` replays CUDA graphs, for small models on a GPU."""


class Hang(Model):
    """Detection of hung ranks, and the action to take."""

    after: Annotated[Duration, Ge(1), Lt(2**31)] = 300.0
    """Time without an iteration: `300` seconds, `5m`, `2h`. A phase's first iteration, which may
    compile, gets five times as long, and so does everything between iterations, such as a
    checkpoint."""
    action: Literal["warn", "fail"] = "warn"
    """`warn` reports which rank hangs where, and which ranks wait; `fail` also ends its process:
    see `max_failures`."""


class Change(Model):
    """A change of values during the run."""

    at: Interval
    """Completed epochs or optimizer steps after which it happens, before the next iteration."""
    set: Annotated[dict[str, Any], Field(min_length=1)]
    """Dotted path to the new value: a mutable field of a hook, such as `hooks.ema.decay`, or a
    number of the optimizer, such as `optimizer.lr`, whose schedule scales with it."""


def parse_optimizer_path(path: str) -> tuple[str, str] | None:
    """Return the optimizer's name and the key of a path to one of its numbers or its groups'
    numbers, else None."""
    first, *keys = path.split(".")
    name = keys.pop(0) if first == "optimizers" and keys else ""
    is_group = len(keys) == 3 and keys[0] == "groups" and keys[1].isdecimal() and keys[2] != "match"
    is_number = is_group or (
        len(keys) == 1 and keys[0] not in ("", "type", "groups", "params", "scheduler")
    )
    return (name, ".".join(keys)) if is_number and (first == "optimizer" or name) else None


def without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop top-level nulls, which mean the default; but `scheduler: null` also turns off the task's
    own."""
    return {key: value for key, value in data.items() if value is not None or key == "scheduler"}


def _length_problem(epochs: object, steps: object) -> Problem | None:
    """Return a problem unless exactly one of epochs and steps is set."""
    if epochs is not None and steps is not None:
        return Problem("steps", "cannot be combined with epochs; set one of them to null")
    return (
        Problem("", "neither epochs nor steps is set; set one of them")
        if epochs is None and steps is None
        else None
    )


def _convert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values given in Python to plain data; the fields of a task instance become its
    arguments."""
    problems: list[Problem] = []
    rest = {name: value for name, value in values.items() if name != "task"}
    data: dict[str, Any] = collect_problems(problems, to_config, rest) or {}
    task = (
        collect_problems(problems, convert_task, values["task"])
        if values.get("task") is not None
        else {}
    )
    if task and "task_args" in task and "task_args" in values:
        problems.append(
            Problem("task_args", "has no effect with a task instance; set its fields instead")
        )
    if problems:
        raise ConfigError(problems)
    return {**(task or {}), **data}


def _make_default_name(data: Mapping[str, Any]) -> str:
    """Return the name of the task's class in snake case."""
    class_name = data.get("task", "experiment").rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


class Resolution:
    """What an experiment was resolved to; stays in the process, as hooks and tasks have state."""

    def __init__(self, resolved: Any) -> None:
        self.is_known = resolved is not None
        self.resolved = resolved
        """None once a run has taken it."""

    def __reduce__(self) -> tuple[type[Resolution], tuple[None]]:
        return Resolution, (None,)


class Experiment(Model):
    """An experiment: task, training, hooks, workers.

    In Python `task` may be a class or an instance, hooks may be classes, instances or mappings, and
    the optimizer's `type` a class. The name defaults to that of the task's class.
    """

    name: RunName
    """Name of the run's folder: letters, digits, `_`, `-` and `.`, at most 200 bytes."""
    task: str
    """The task's class, as `module:Class`."""
    task_args: dict[str, Any] = Field(default_factory=dict)
    """The task's fields."""
    epochs: Annotated[int, Ge(1)] | None = None
    """Passes over the training data; set this or `steps`."""
    steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps; set this or `epochs`."""
    epoch_steps: Annotated[int, Ge(1)] | None = None
    """Optimizer steps in an epoch, for training data that is a stream."""
    batch_size: BatchSize = 32
    """Samples in a batch of each worker."""
    optimizer: Component = Component.model_validate({"type": "SGD", "lr": 0.1})
    """The optimizer: a class of torch.optim or `module:Class`, and its arguments; without `type`,
    arguments of SGD. `groups` sets other arguments for some of the parameters."""
    scheduler: LRSchedulers | None = None
    """The learning-rate scheduler: a class of torch.optim.lr_scheduler or `module:Class`, and its
    arguments; or a list of them, each with `begin`, `end` and `every`."""
    optimizers: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], NamedOptimizer] = Field(
        default_factory=dict
    )
    """Optimizers by name, for a task with `turns`: each with its class and arguments, `params` and
    `scheduler`."""
    init: Init | None = None
    """Initial weights from another run or a file; by default those of the task's `model()`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass; fp16 scales the loss."""
    scaler: Annotated[Scaler, Needs("precision: fp16")] = Scaler()
    """Options of torch's GradScaler, with `precision: fp16`."""
    channels_last: bool = False
    """Stores convolution weights, and with them all images, in the memory format that tensor cores
    prefer."""
    sync_batchnorm: bool = False
    """Normalizes over the batches of all ranks: BatchNorm layers become torch's SyncBatchNorm,
    which needs GPUs."""
    activation_checkpointing: Patterns | None = None
    """Patterns, with * and ?, of modules that save memory by recomputing activations in the
    backward pass."""
    compile: Annotated[
        Annotated[bool, Tag("word")] | Annotated[Compile, Tag("group")],
        Discriminator(
            lambda value: (
                "group"
                if isinstance(value, dict | Compile) or value in get_args(CompileMode)
                else "word"
            )
        ),
    ] = False
    """Compiles the model in place with torch.compile, or the modules that the task calls; under
    fsdp, each unit. Names of parameters and checkpoints do not change. A mapping sets torch's
    `mode`."""
    deterministic: bool = False
    """Uses slower, deterministic algorithms (torch.use_deterministic_algorithms); an operation
    without one fails."""
    cudnn_benchmark: Annotated[bool, Needs("workers.gpu: true")] = False
    """Lets cuDNN time its algorithms for each input shape and use the fastest. Needs
    `workers.gpu: true`."""
    float32_matmul_precision: Literal["highest", "high", "medium"] | None = None
    """Precision of float32 products (torch.set_float32_matmul_precision); by default the task's, or
    `highest`."""
    accumulate: Annotated[int, Ge(1)] | Literal["auto"] = 1
    """Micro-batches in an optimizer step; `auto` splits a batch only where memory runs out, with
    the same gradients."""
    validate_every: Interval = Interval(1)
    """Interval between val phases: `1` or `2 epochs`, `100 steps`, 0 for never."""
    seed: Seed = 0
    """Seed of weights, data order and everything random."""
    max_failures: Annotated[int, Ge(-1)] = 3
    """Restarts from the last checkpoint after a worker died; -1 is unlimited."""
    max_preemptions: Annotated[int, Ge(-1)] = -1
    """Restarts elsewhere after a warning that a node will be taken away; -1 is unlimited. These
    repeat no step."""
    hang: Hang = Hang()
    """Detection of hung ranks, and the action to take."""
    loader: Loader = Loader()
    """Options of the data loaders."""
    workers: Workers = Workers()
    """The processes of one run."""
    upload_every: Annotated[Duration, Ge(1)] = 30.0
    """Time between uploads of a rank's rows to an object store: `30`, `2m`. In a folder, rows
    appear in a second."""
    environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = Field(
        default_factory=list
    )
    """Environment variables to pass to workers on a cluster, such as API keys; their values are
    never saved."""
    tags: list[str] = Field(default_factory=list)
    """Words by which `ls` finds its runs; `hookyard note` changes a run's."""
    notes: str = ""
    """Text that `ls` shows; `hookyard note` changes a run's."""
    hooks: dict[str, Any] = Field(default_factory=dict)
    """Hooks by name, with the defaults once it is loaded; null or false turns one off."""
    changes: list[Change] = Field(default_factory=list)
    """Values to change during the run, and when, such as a schedule that PBT found."""
    sweep: Sweep | None = None
    """The sweep over this experiment, if it is one."""

    _source: ExperimentSource | None = PrivateAttr(default=None)
    """The experiment as written; None while it is being resolved."""
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    """The values as Python code gave them."""
    _resolution: Resolution = PrivateAttr(default_factory=lambda: Resolution(None))

    def __init__(self, **values: Any) -> None:
        """Check the fields, not yet the classes that they name; raise ConfigError.

        Classes are imported from their own folders and the current one.
        """
        data = _convert(values)
        data = {"name": _make_default_name(data), **data}
        super().__init__(**without_nulls(data))
        self._given = values
        self._source = ExperimentSource.from_data(data, [Path.cwd(), *list_import_folders(data)])

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # as in `Model`

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if problem := _length_problem(self.epochs, self.steps):
            raise make_value_error(problem.path, problem.message)
        return self

    @property
    def micro_batches(self) -> int:
        """Batches of the loader in one optimizer step."""
        return 1 if self.accumulate == "auto" else self.accumulate

    @property
    def optimizations(self) -> dict[str, Optimization]:
        """Optimizers and their schedulers by name; a single one has an empty name."""
        if not self.optimizers:
            return {"": Optimization("", self.optimizer, self.scheduler)}
        return {
            name: Optimization(
                name,
                Component(type=entry.type, **entry.arguments),
                entry.scheduler,
                tuple(list_patterns(entry.params or ())),
            )
            for name, entry in self.optimizers.items()
        }

    def __eq__(self, other: object) -> bool:
        """Compare content, wherever the experiments were read."""
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    # As for any class with an `__eq__`; pydantic would give a frozen one a hash, of fields that
    # have none.
    __hash__ = None  # type: ignore[assignment]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with these values over the written ones, or raise ConfigError."""
        if not update or self._source is None:
            return super().model_copy(update=update, deep=deep)
        data = _convert(update)
        copy = check(type(self), without_nulls({**self.model_dump(mode="json"), **data}), "")
        folders = [*self._source.import_paths, *map(str, list_import_folders(data))]
        copy._given = {**self._given, **update}
        copy._source = replace(
            self._source.with_values(data), import_paths=tuple(dict.fromkeys(folders))
        )
        return copy

    @property
    def source(self) -> ExperimentSource:
        """The experiment as written."""
        return self._source or ExperimentSource(self.model_dump(mode="json", exclude_unset=True))

    @property
    def import_paths(self) -> tuple[str, ...]:
        """Folders added to the import path, here and on every worker: the YAML file's, and the
        current one."""
        return self.source.import_paths


NO_TASK = "missing:Missing"
_PLACEHOLDERS: dict[str, Any] = {"name": "unnamed", "task": NO_TASK}


def validate_sections(
    data: Mapping[str, Any], problems: list[Problem]
) -> tuple[dict[str, Any], Experiment]:
    """Validate data, add its problems, and return the valid sections and their experiment.

    Required keys that are missing or wrong get placeholders. So one mistake does not hide others.
    """
    valid: dict[str, Any] = to_plain_data(data)
    errors: list[Problem] = []
    try:
        experiment = _validate(valid)
    except ValidationError as error:
        if (rest := without_refused_nulls(error, valid)) != valid:
            return validate_sections(rest, problems)
        errors = convert_errors(error, Experiment, valid, "")
        details = error.errors(include_url=False)
        wrong = {location[0] for each in details if (location := locate_error(each, valid))}
        valid = _PLACEHOLDERS | {key: value for key, value in valid.items() if key not in wrong}
        if _length_problem(valid.get("epochs"), valid.get("steps")):
            valid |= {"epochs": 2**31, "steps": None}
        experiment = _validate(valid)
    length_problem = _length_problem(data.get("epochs"), data.get("steps"))
    if length_problem and not {"", "epochs", "steps"} & {
        *(error.meant for error in errors),
        *(error.path for error in errors),
    }:
        errors.append(length_problem)
    problems.extend(errors)
    return valid, experiment


def _validate(data: Mapping[str, Any]) -> Experiment:
    return Experiment.model_validate(data)


def check_run_name(experiment: Experiment, name: str | None) -> str:
    """Return the run's name, or the experiment's where there is none; may raise UsageError."""
    if name is None:
        return experiment.name
    try:
        return _check_name(name)
    except (ValueError, TypeError) as error:
        raise UsageError(f"name {shorten(str(name), 43)!r} {_NAME_RULE}") from error
