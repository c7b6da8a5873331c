"""The hook: what happens around a step, and on which ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from inspect import get_annotations, isroutine
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hooks.interval import Interval

if TYPE_CHECKING:
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
"""The events of an iteration. A hook may set how often it gets them, with `paced_by`."""

NEEDS_MODEL = "it needs the model, the optimizer or the loaders, which only the task has there"
NEEDS_OUTPUT = "it needs the output of the forward pass, which only the task has there"
CHANGES_GRADIENTS = "it changes gradients, which each further evaluation computes again"
NEEDS_WHOLE_BATCHES = "it needs the output and the loss of whole batches, each once"


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


@dataclass(frozen=True)
class Setup:
    """The parts of an experiment that decide whether a hook can work in it."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`workers.strategy`; with fsdp each rank has only its shards of the model."""
    custom_loop: bool = False
    """True if the task trains by itself (`Task.train`). Such a loop fires `on_step` only, of an iteration's events."""
    several_optimizers: bool = False
    """True if optimizers take turns within an iteration."""
    splits_batches: bool = False
    """True with `accumulate: auto`, which may split a batch and start it again."""
    closure: bool = False
    """True if the optimizer evaluates the loss several times in a step, as LBFGS does. Hooks see the first of these."""
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    """All hooks of the experiment by name."""

    def explain(
        self,
        *,
        fsdp: str = "",
        custom_loop: str = "",
        several_optimizers: str = "",
        splits_batches: str = "",
        closure: str = "",
    ) -> str:
        """Return the first of these reasons that applies to this setup, as a sentence; empty if none does."""
        if fsdp and self.strategy == "fsdp":
            return f"does not work with workers.strategy: fsdp: {fsdp}"
        if custom_loop and self.custom_loop:
            return f"does not work where a task trains by itself: {custom_loop}"
        if several_optimizers and self.several_optimizers:
            return f"does not work where optimizers take turns: {several_optimizers}"
        if splits_batches and self.splits_batches:
            return f"does not work with accumulate: auto: {splits_batches}"
        if closure and self.closure:
            return f"does not work with an optimizer that needs a closure: {closure}"
        return ""

    def find_reason_against(self, hook: Hook) -> str:
        """Return why a hook cannot work in this setup; empty if it can."""
        acts_in = [
            event for event in WITHIN_ITERATION if hook.handles(event) and hook.pace(event) != Interval(0, "steps")
        ]
        missed = [event for event in acts_in if event != "on_step"]
        reason = f"it acts in {', '.join(missed)}, which only the hooked loop fires" if missed else ""
        return self.explain(custom_loop=reason) or hook.unsuitable(self)


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

    def unsuitable(self, setup: Setup) -> str:
        """Return why this hook cannot work in a setup, or an empty string; `setup.explain` words the usual reasons.

        A task that trains by itself is refused without asking if the hook handles an event that its loop does not fire.
        """
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
