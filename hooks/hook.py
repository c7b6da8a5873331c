"""The base class of hooks: the events, what a hook declares, and the state that checkpoints keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from inspect import get_annotations, isroutine, signature
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from hooks.errors import WrongHook
from hooks.hook_state import find_shared_key, get_state, set_state
from hooks.interval import Interval
from hooks.other_systems import find_counterpart

if TYPE_CHECKING:
    from hooks.setup import Setup
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
"""The events of an iteration. A hook may set how often it gets them, with `at_interval`."""


class Priority(IntEnum):
    """Order of the hooks of one event, lowest value first (MMEngine's nine levels)."""

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
    """A part of training that can be added and removed: every event is a no-op to override. Used in
    workers.

    A hook is a dataclass whose fields are its parameters. It reads and changes the state. To save
    or stop, it sends a request to the loop. The events below are in the order in which they fire.
    """

    name: str = ""
    """The hook's name in the experiment, set by the plan; state and costs are kept under it."""

    priority: ClassVar[Priority | int] = Priority.NORMAL
    """The hook's order among those of an event: the lowest value runs first, and equal values in
    the order of the file. `priority: HIGH` in YAML overrides it."""
    ranks: ClassVar[Ranks] = Ranks.ALL
    """The ranks that run the hook."""
    collective: ClassVar[bool] = False
    """True if the hook calls a collective, so every rank must run it. Ranks compare these hooks
    before they start, so that a difference is an error and not a hang."""
    mutable: ClassVar[frozenset[str]] = frozenset()
    """Fields that may change during a run: the hook keeps no copy of their values."""
    waits_for_device: ClassVar[frozenset[str]] = frozenset()
    """Events of an iteration in which the hook synchronizes. Events with an interval need not be
    listed."""
    observes: ClassVar[bool] = False
    """True if weights, optimizer, random numbers and training rows are the same, bit for bit,
    without the hook. It may validate, save, write files, and end the run between two phases, but
    not change the batch, the output, the loss, `requires_grad`, a random generator or a setting of
    torch. Trials of a sweep that differ only in such hooks share one training run."""
    best_effort: ClassVar[bool] = False
    """True if a failure of the hook is only logged, as for trackers, and the run continues.
    Otherwise it fails the run, with hook, event and rank in the message."""
    keeps_record: ClassVar[bool] = False
    """True if the hook saves data under its name in each checkpoint, which can then be
    published."""
    phase_metrics: ClassVar[frozenset[str]] = frozenset()
    """Metrics that the hook adds for each phase in `on_report`, such as `samples_per_s` for
    `val/samples_per_s`. Metrics of the task cannot use these names."""
    monitors: ClassVar[str] = ""
    """Parameter that names the metrics which the hook reads, `monitor` or `best`. An experiment is
    refused if no report can hold them. If the hook also has a parameter `mode`, it is by default
    the mode that the sweep, another hook or a meter has for the metric."""
    monitors_in_training: ClassVar[bool] = False
    """True if the hook needs these metrics while the run trains, which is too early for those of
    `test`."""
    evaluates: ClassVar[bool] = True
    """False if the hook takes no part in the evaluation of a stored checkpoint, as hooks that keep
    checkpoints, end training or send data elsewhere."""
    state_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that checkpoints keep, besides those of base classes, by their own `state_dict` if
    they have one. They are equal on all ranks."""
    rank_state_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that checkpoints keep for each rank, by their own `rank_state_dict` if they have
    one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_events(cls)
        _check_signatures(cls)
        _check_attributes(cls)
        _check_state_keys(cls)

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        """Called after a checkpoint is restored, for a resume or an evaluation, and before `on_start`.

        Args:
            state: The state of the run.
            checkpoint: The saved parts by name, the checkpoint's own name as `name`, and as
                `copied_from` the path of the other run's checkpoint of which it is a copy; None if
                this run saved it.
        """

    def on_start(self, state: State) -> None:
        """Called when the run begins: model, optimizer and data exist."""

    def on_phase_start(self, state: State) -> None:
        """Called when a phase (`state.phase`: `train`, `val`, `val/noisy`) begins, or resumes in
        its middle."""

    def on_iteration_start(self, state: State) -> None:
        """Called before the batch is fetched."""

    def on_batch(self, state: State) -> None:
        """Called when `state.batch` is on the device."""

    def on_forward(self, state: State) -> None:
        """Called when `state.output` is set.

        If optimizers take turns, the events up to `on_update` fire in each turn (`state.turn`),
        without an output.
        """

    def on_loss(self, state: State) -> None:
        """Called when `state.loss` is set; in `train`, the backward pass follows this event.

        In `val` and `test` the loss is None if the task has none there.
        """

    def on_backward(self, state: State) -> None:
        """Called after each backward pass; only in `train`."""

    def on_gradients(self, state: State) -> None:
        """Called with accumulated and unscaled gradients, before the optimizer steps; only in
        `train`."""

    def on_update(self, state: State) -> None:
        """Called after the optimizer stepped, before the step is counted; only in `train`."""

    def on_step(self, state: State) -> None:
        """Called at the end of an iteration, after it is counted; in every phase."""

    def on_phase_end(self, state: State) -> None:
        """Called when `state.metrics` holds the phase's values, reduced across ranks.

        The model has its raw weights, although averages may have been validated.
        `state.find_evaluated_weights()` returns the weights of a metric:
        `with state.find_evaluated_weights("val/accuracy")(state):`.
        """

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        """Called on every rank before a checkpoint is written.

        Args:
            state: The state of the run.
            checkpoint: The parts to save, by name. The master saves what hooks put into it.
        """

    def on_saved(self, state: State, path: str) -> None:
        """Called when a checkpoint is written and verified; training may have continued in the
        meantime.

        Args:
            state: The state of the run.
            path: The checkpoint's folder or URL.
        """

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        """Called before metrics are reported to the driver.

        Args:
            state: The state of the run.
            metrics: The report, to which hooks may add numbers. Replacing an entry that every report has,
                such as `step` or `time`, is an error.
        """

    def on_end(self, state: State) -> None:
        """Called when the run ends, even after a requested stop."""

    def on_exception(self, state: State, error: BaseException) -> None:
        """Called when anything has failed; errors in this event are only logged.

        Args:
            state: The state of the run.
            error: The exception.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, by default the attributes in `state_fields`.

        Returns:
            Tensors, numbers, strings, and lists, tuples, sets, dicts, OrderedDict and Counter of
            them. A checkpoint refuses other types, and has the master's copy.
        """
        return get_state(self, "state_fields", "state_dict")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, on every rank that runs the hook.

        Args:
            state: The result, with tensors on the CPU.
        """
        set_state(self, "state_fields", "load_state_dict", state)

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the state to save that differs between ranks, by default the attributes in
        `rank_state_fields`.

        Returns:
            What `state_dict` may hold; the checkpoint has one for each rank.
        """
        return get_state(self, "rank_state_fields", "rank_state_dict")

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `rank_state_dict` of this rank.

        Args:
            state: The result, with tensors on the CPU.
        """
        set_state(self, "rank_state_fields", "load_rank_state_dict", state)

    def unsuitable(self, setup: Setup) -> str:
        """Return why this hook cannot work in a setup. The loop itself rejects a hook whose events a
        custom loop does not fire.

        Args:
            setup: What of the experiment decides it: `return setup.explain(fsdp="it needs full
                parameters")` words a usual reason.

        Returns:
            The reason, or an empty string.
        """
        return ""

    def handles(self, event: str) -> bool:
        """Return whether the loop calls this hook at an event, by default at those that it overrides.

        Override this if some settings of the hook make an event unnecessary.

        Args:
            event: Name of the event, such as `on_step`.

        Returns:
            Whether it does.
        """
        return getattr(type(self), event) is not getattr(Hook, event)

    def get_interval(self, event: str) -> Interval | None:
        """Return the interval at which the hook gets an event, set with `at_interval`.

        Args:
            event: Name of the event, such as `on_step`.

        Returns:
            The interval; None means always.
        """
        field = getattr(getattr(type(self), event), "interval_field", None)
        if field is None:
            return None
        interval = getattr(self, field)
        return Interval(interval, "iterations") if isinstance(interval, int) else interval


def _check_events(cls: type[Hook]) -> None:
    """Raise WrongHook for a method that looks like an event, a field that hides one, or an interval
    that has no effect."""
    for name in get_annotations(cls):
        if name in EVENTS:
            raise WrongHook(
                f"{cls.__name__}: the field {name} has the name of an event; rename the field"
            )
    bases = [base for base in cls.__mro__ if base not in Hook.__mro__]
    members = chain.from_iterable(vars(base).items() for base in bases)
    for name, value in members:
        if not isroutine(value):
            continue
        counterpart = find_counterpart(name)
        is_event = name in EVENTS
        if not is_event and (counterpart or name.startswith("on_")):
            near = [counterpart] if counterpart else get_close_matches(name, EVENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"events: {', '.join(EVENTS)}"
            raise WrongHook(f"{cls.__name__}.{name}: there is no such event ({hint})")
        if hasattr(value, "interval_field") and name not in WITHIN_ITERATION:
            raise WrongHook(
                f"{cls.__name__}.{name} cannot have an interval;"
                f" events that can: {', '.join(WITHIN_ITERATION)}"
            )


def _check_signatures(cls: type[Hook]) -> None:
    """Raise WrongHook for an overridden method that cannot take the arguments of `Hook`'s."""
    for name, method in vars(Hook).items():
        own = getattr(cls, name)
        if name.startswith("_") or not isroutine(method) or own is method:
            continue
        parameters = signature(method).parameters
        try:
            signature(own).bind(*parameters)
        except TypeError:
            expected = f"def {name}({', '.join(parameters)})"
            raise WrongHook(
                f"{cls.__name__}.{name} must take the arguments of hooks: `{expected}`"
            ) from None


def _check_attributes(cls: type[Hook]) -> None:
    """Raise WrongHook for a class attribute of a wrong type, or for a collective that some ranks would
    not run."""
    members = ", ".join(f"Ranks.{member.name}" for member in Ranks)
    names = 'a tuple of names, such as ("_best",)'
    set_of_names = 'a frozenset of names, such as frozenset({"accuracy"})'
    for name, kind, expected in (
        ("priority", int, "a number or a Priority, such as Priority.HIGH"),
        ("state_fields", tuple, names),
        ("rank_state_fields", tuple, names),
        ("ranks", Ranks, f"one of {members}"),
        ("mutable", frozenset, set_of_names),
        ("waits_for_device", frozenset, set_of_names),
        ("phase_metrics", frozenset, set_of_names),
    ):
        value = getattr(cls, name)
        if not isinstance(value, kind):
            raise WrongHook(f"{cls.__name__}.{name} must be {expected}, got {value!r}")
    if cls.collective and cls.ranks is not Ranks.ALL:
        raise WrongHook(
            f"{cls.__name__} is collective, so it must run on all ranks, not on {cls.ranks}"
        )


def _check_state_keys(cls: type[Hook]) -> None:
    """Raise WrongHook for two attributes that a checkpoint would keep under the same key."""
    for field in ("state_fields", "rank_state_fields"):
        shared = find_shared_key(cls, field)
        if shared is not None:
            raise WrongHook(
                f"{cls.__name__}.{field} names {shared[0]} and {shared[1]}, which a checkpoint keeps"
                " under one name, without the underscore; rename one of them"
            )


def find_hook_with_metric(name: str, hooks: Mapping[str, Hook]) -> str | None:
    """Return the name of the hook that adds a metric of this name for each phase, or None."""
    return next((key for key, hook in hooks.items() if name in hook.phase_metrics), None)


EVENTS: tuple[str, ...] = tuple(name for name in vars(Hook) if name.startswith("on_"))
"""All events, in the order in which they fire."""


class Cleanup(Hook, ABC):
    """Base of hooks that release a file, a setting or a device when the run ends or fails."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource; further calls have no effect."""

    def on_end(self, state: State) -> None:
        self.close()

    def on_exception(self, state: State, error: BaseException) -> None:
        self.close()
