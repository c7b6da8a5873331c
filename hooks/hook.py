"""The hook: what happens around a step, and on which ranks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from inspect import get_annotations, isroutine
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hooks.interval import Interval
    from hooks.state import State

WITHIN_ITERATION = (
    "on_iteration_start",
    "on_batch",
    "on_forward",
    "on_loss",
    "on_backward",
    "on_gradients",
    "on_update",
    "on_step",
)
"""The events of an iteration: those that a hook may ask for at a pace, by the decorator `paced_by`."""


WORKS_ON_MODEL = "it works on the model, the optimizer or the loaders, which are the task's own there"
"""For hooks that need the hooked loop."""
WORKS_ON_OUTPUT = "it works on the output of the forward pass, which is the task's own within its turns"
"""For hooks that cannot be where optimizers take turns."""


class Priority(IntEnum):
    """When a hook runs among the hooks of one event: the lowest value first (MMEngine's nine levels)."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100


class Ranks(StrEnum):
    """The ranks on which a hook runs."""

    ALL = "all"
    MASTER = "master"
    LOCAL_MASTER = "local_master"


class Hook:
    """What happens around a step: every event is a no-op to override. Runs in the worker process.

    A hook is a dataclass whose fields are its parameters. It reads and changes the state it is given, and asks the
    loop to save or stop; it never does either itself. The events below are listed in the order in which they fire.
    """

    name: str = ""
    """The hook's name in the experiment, set by the plan; state and costs are kept under it."""

    priority: ClassVar[Priority | int] = Priority.NORMAL
    ranks: ClassVar[Ranks] = Ranks.ALL
    collective: ClassVar[bool] = False
    """True when the hook calls a collective, so that every rank must run it."""

    mutable: ClassVar[frozenset[str]] = frozenset()
    """Fields that may change while the run goes on, because the hook reads them anew each time it uses them."""

    waits_for_device: ClassVar[frozenset[str]] = frozenset()
    """Events of an iteration in which the hook reads what the device has computed, so that training waits for it each
    time. An event with a pace (`paced_by`) may do so without saying it."""

    observes: ClassVar[bool] = False
    """True when training is the same, bit for bit, without the hook: weights, optimizer, random numbers and the rows of
    training. It may validate, save, and ask for the run to end between two phases. Trials that differ in such hooks
    alone can share one training."""

    best_effort: ClassVar[bool] = False
    """True when a failure of the hook is logged and must not end the run (trackers)."""

    keeps_record: ClassVar[bool] = False
    """True when the hook puts a record under its own name into each checkpoint, which can then be published."""

    evaluates: ClassVar[bool] = True
    """False when the hook has no part in the evaluation of a stored checkpoint: where it keeps checkpoints, ends the
    training, or writes to a run elsewhere."""

    no_turns: ClassVar[str] = ""
    """Why the hook cannot be where several optimizers take turns; empty where it can."""

    def __init_subclass__(cls) -> None:
        """Refuses a method that looks like an event but is none, such as `on_stepp`, and a field that would hide an
        event."""
        super().__init_subclass__()
        unknown = [
            name
            for name, value in vars(cls).items()
            if name.startswith("on_") and name not in EVENTS and isroutine(value)
        ]
        if unknown:
            raise TypeError(
                f"{cls.__name__} defines {', '.join(unknown)}, which is no event; events: {', '.join(EVENTS)}"
            )
        hidden = [name for name in get_annotations(cls) if name in EVENTS]
        if hidden:
            raise TypeError(
                f"{cls.__name__} has a field {hidden[0]}, which is the name of an event; call the field otherwise"
            )
        paced = [name for name in vars(cls) if hasattr(vars(cls)[name], "paced_by") and name not in WITHIN_ITERATION]
        if paced:
            raise TypeError(
                f"{cls.__name__}.{paced[0]} has a pace, which only events of an iteration can:"
                f" {', '.join(WITHIN_ITERATION)}"
            )
        if cls.collective and cls.ranks is not Ranks.ALL:
            raise TypeError(f"{cls.__name__} is collective, so it must run on all ranks, not on {cls.ranks}")

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        """The model is built and a checkpoint was restored into it; fires before `on_start`, only when resuming.

        `checkpoint` holds what was saved, and the checkpoint's own name as `name`."""

    def on_start(self, state: State) -> None:
        """The run begins: model, optimizer and data are there."""

    def on_phase_start(self, state: State) -> None:
        """A phase of train, val or test begins (`state.phase`, such as `val` or `val/noisy`); fires again when a phase
        is resumed in its middle."""

    def on_iteration_start(self, state: State) -> None:
        """Before the batch is fetched."""

    def on_batch(self, state: State) -> None:
        """`state.batch` is on the device."""

    def on_forward(self, state: State) -> None:
        """`state.output` is there. Where optimizers take turns, this and what follows to `on_update` fire in each turn
        (`state.turn`), in training without an output, which is the task's own."""

    def on_loss(self, state: State) -> None:
        """`state.loss` is there; in `train` what it holds after this event is what is differentiated."""

    def on_backward(self, state: State) -> None:
        """After each backward pass; only in `train`."""

    def on_gradients(self, state: State) -> None:
        """Gradients are accumulated and unscaled, the optimizer has not stepped; only in `train`."""

    def on_update(self, state: State) -> None:
        """The optimizer changed the parameters; only in `train`. The counters do not count this step yet."""

    def on_step(self, state: State) -> None:
        """The iteration is over and counted; fires in every phase."""

    def on_phase_end(self, state: State) -> None:
        """`state.metrics` holds the phase's values, reduced over ranks."""

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written, on every rank; what is put into it is saved (by the master)."""

    def on_saved(self, state: State, path: str) -> None:
        """The checkpoint at `path` is written and verified; where that is done in the background, training may have
        gone on since `on_save`."""

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        """Just before `metrics` are handed up to whoever drives the loop."""

    def on_end(self, state: State) -> None:
        """The run is over, also when it was asked to stop."""

    def on_exception(self, state: State, error: BaseException) -> None:
        """Something failed, anywhere; best effort."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers, strings and containers of them. The master's copy is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave, on every rank that runs the hook."""

    def rank_state_dict(self) -> dict[str, Any]:
        """As `state_dict`, for what differs from rank to rank; saved for each."""
        return {}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `rank_state_dict` gave on this rank."""

    def needs_whole_model(self) -> str:
        """Why this hook cannot work where each rank has a part of the model (`strategy: fsdp`); empty where it can."""
        return ""

    def needs_hooked_loop(self) -> str:
        """Why this hook cannot be where a task trains by itself (`Task.train`); empty where it can. Of an iteration's
        events such a loop fires `on_step` alone, with the row."""
        missed = [event for event in WITHIN_ITERATION if event != "on_step" and self.handles(event)]
        return f"it acts in {', '.join(missed)}, which the hooked loop alone fires" if missed else ""

    def misfit(self, hooks: Mapping[str, Hook]) -> str:
        """Why this hook cannot be beside the others of its experiment, by name, itself among them; empty where it
        can."""
        return ""

    def handles(self, event: str) -> bool:
        """Whether this hook overrides an event."""
        return getattr(type(self), event) is not getattr(Hook, event)

    def pace(self, event: str) -> Interval | int | None:
        """How often the hook asked for an event with `paced_by`: an interval, or a number of iterations; None is
        always."""
        field = getattr(getattr(type(self), event), "paced_by", None)
        return None if field is None else getattr(self, field)


EVENTS: tuple[str, ...] = tuple(name for name in vars(Hook) if name.startswith("on_"))
"""Every event, in the order in which it fires."""
