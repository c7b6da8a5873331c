"""Parts of an experiment about its training: loaders, precision, compiling, hangs, changes."""

from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Lt
from pydantic import Discriminator, Field, Tag

from hooks.duration import Duration
from hooks.interval import Interval
from orchestrator.experiment.fields.field_errors import OWN_MESSAGE
from orchestrator.experiment.fields.section import Model

BatchSize = Annotated[int, Ge(1), Lt(2**31)]


class Loader(Model):
    """Options of the data loaders."""

    num_workers: Annotated[int, Ge(0)] = 0
    """DataLoader workers of each rank; with 0 the training process loads the data."""
    pin_memory: bool | None = None
    """Page-locks batches, so that copies to a GPU overlap with its work. By default it is on with a
    GPU."""
    eval_batch_size: BatchSize | None = None
    """Samples in a batch of `val` and `test`; by default `batch_size`."""
    drop_last: bool = False
    """Drops the last training batch of an epoch, or of a pass over an iterable dataset, if it is
    smaller than the others. With an iterable dataset, each DataLoader worker drops its own."""
    on_exhausted: Literal["restart", "stop"] = "restart"
    """What happens when a rank's part of an iterable dataset ends: `restart` begins the part again,
    and `stop` ends training on all ranks, or only the epoch if that is one pass."""


class Scaler(Model):
    """Options of torch's GradScaler, which scales the loss under fp16."""

    init_scale: Annotated[float, Gt(0)] = 65536.0
    """Initial factor of the loss."""
    growth_factor: Annotated[float, Gt(1)] = 2.0
    """Factor of the scale after `growth_interval` consecutive steps without an overflow."""
    backoff_factor: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Factor of the scale after an overflow, whose step is skipped."""
    growth_interval: Annotated[int, Ge(1)] = 2000
    """Steps without an overflow before the scale grows."""


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class Compile(Model):
    """Arguments of torch.compile."""

    mode: CompileMode = "default"
    """Mode of torch.compile: `reduce-overhead` replays CUDA graphs, for small models on a GPU."""


def _choose_compile_branch(value: object) -> str | None:
    """Return the tag of the type that a value of `compile` was meant to have."""
    if isinstance(value, dict | Compile) or value in get_args(CompileMode):
        return "group"
    return "word" if isinstance(value, bool) else None


CompileSetting = Annotated[
    Annotated[bool, Tag("word")] | Annotated[Compile, Tag("group")],
    Discriminator(
        _choose_compile_branch,
        custom_error_type=OWN_MESSAGE,
        custom_error_message="{message}",
        custom_error_context={
            "key": "",
            "message": "must be true, false or a mapping with `mode`",
        },
    ),
]
"""The type of `compile`: true, false, or arguments."""


class Hang(Model):
    """Detection of hung ranks, and the action to take."""

    after: Annotated[Duration, Ge(1), Lt(2**31)] = 300.0
    """Time without an iteration after which a rank counts as hanging, in seconds or as `5m`, `2h`.
    The first iteration of a phase, which may compile, gets five times as long, and so does
    everything between iterations, such as a checkpoint."""
    action: Literal["warn", "fail"] = "warn"
    """`warn` reports which rank hangs where, and which ranks wait. `fail` also ends the process of
    that rank, which counts for `max_failures`."""


class Change(Model):
    """A change of values during the run."""

    at: Interval
    """Completed epochs or optimizer steps after which it happens, before the next iteration."""
    set: Annotated[dict[str, Any], Field(min_length=1)]
    """Dotted path to the new value: a mutable field of a hook, such as `hooks.ema.decay`, or a
    number of the optimizer, such as `optimizer.lr`, whose schedule scales with it, also its limits
    such as `eta_min` and `max_lr`."""
