"""The pace of a hook with a budget, chosen by what its looks cost: a look is a call of the hook at that pace, within an
iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from math import ceil, log2
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_type_hints

from hooks.budget import Budget
from hooks.hook import WITHIN_ITERATION, Hook
from hooks.rhythm import Rhythm, SteeredPace

if TYPE_CHECKING:
    from hooks.call import Call
    from hooks.state import State

ASSUMED_S = 0.005
"""What the first look is taken to cost beside a whole step: modules are imported, and caches are cold."""
AIM = 0.9
"""The part of its budget that a hook is to take, as what it costs varies."""
MARGIN = 1.1
"""A faster pace has to be enough for so many times what is wanted, so that paces do not swing between two powers of
two."""
SETTLE_EVERY_S = 0.1
"""A single rank settles its paces this often; several do as they ask each other whether to stop."""
LEAST_TIMED = 8
"""Steps that have to be timed before a first pace is chosen."""
_TIMED, _SEEN = 32, 3
"""The last steps without a look, and the last looks, that medians are of."""
_KEPT = 2000
"""Steps that wait to be reckoned, as a device may be behind; of more the oldest go."""
_ONCE_A_RUN = ("on_load", "on_start", "on_end", "on_exception")


def steered_paces(hook: Hook) -> dict[str, Rhythm | int]:
    """The paces that a budget can take the place of, by field: those of events within an iteration, in steps or
    iterations, that are on."""
    declared = {field.name for field in fields(hook)}  # type: ignore[arg-type]  # hooks are dataclasses
    paces = {field: getattr(hook, field) for field in _paced_fields(type(hook), hook) if field in declared}
    return {field: pace for field, pace in paces.items() if _is_on(pace)}


def replaced_fields(cls: type[Hook]) -> set[str]:
    """The fields that cannot be said beside a budget: paces that are on by default. What is off otherwise is switched
    on by saying it."""
    declared = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]  # hooks are dataclasses
    return {
        name
        for name in _paced_fields(cls)
        if name in declared and declared[name].default is not MISSING and _is_on(declared[name].default)
    }


def _paced_fields(cls: type[Hook], hook: Hook | None = None) -> Collection[str]:
    found = {event: getattr(getattr(cls, event), "paced_by", None) for event in WITHIN_ITERATION}
    return dict.fromkeys(field for event, field in found.items() if field and (hook is None or hook.handles(event)))


def _is_on(pace: Any) -> bool:
    return pace.unit == "steps" and pace.count > 0 if isinstance(pace, Rhythm) else type(pace) is int


class Unit(NamedTuple):
    """A step of training, or an iteration of val and test, that is over."""

    ended: Any
    trains: bool
    looks: Sequence[tuple[Steering, int, float, float]]
    """Who looked, how often, and the seconds in the ledger since the look before: within iterations, and beside
    them."""


class Budgets:
    """The paces of a plan's hooks with a budget, each measured where it runs and settled by the rank where it is
    dearest. Worker process.

    An iteration only notes the time; everything else is reckoned when paces are settled. What a look costs is what the
    ledger has of the hook since the look before, at every event, and by how much longer a step with a look is than
    those without, beside the hook's own calls: what its module hooks do in the forward pass, say. With `mark`, which
    gives a moment of a device's time line, steps are compared in the device's time. Nothing waits for it.
    """

    def __init__(self, hooks: Mapping[str, Hook], mark: Callable[[], Any] | None = None) -> None:
        self._now = mark or perf_counter
        having = {name: hook for name, hook in hooks.items() if isinstance(hook.budget, Budget)}
        # With places of their own modulo this, hooks never look in the same step, and there are steps in which none
        # looks.
        apart = _power(len(having) + 1)
        self.all = {name: Steering(name, hook, place, apart) for place, (name, hook) in enumerate(having.items())}
        self._units: deque[Unit] = deque(maxlen=_KEPT)
        self._idle: dict[bool, deque[float]] = {trains: deque(maxlen=_TIMED) for trains in (True, False)}
        self._looked: dict[Steering, int] = {}
        self._accumulate, self._settled_at = 1, 0.0

    def watch(self, calls: Mapping[str, Sequence[Call]]) -> None:
        """Takes the calls of the hooks that run on this rank."""
        for one in self.all.values():
            own = [
                call
                for event, some in calls.items()
                if event not in _ONCE_A_RUN
                for call in some
                if call.name == one.name
            ]
            one.within = [call for call in own if call.event in WITHIN_ITERATION]
            one.beside = [call for call in own if call.event not in WITHIN_ITERATION]
            one.looking = [call for call in own if call.pace is one.fastest]
            one.spend()  # what counts begins here

    @property
    def are_due(self) -> bool:
        """Whether a single rank is to settle its paces."""
        return bool(self.all) and perf_counter() - self._settled_at >= SETTLE_EVERY_S

    def begin(self, state: State) -> None:
        """A phase begins: what came before belongs to no step."""
        self._reckon()
        self._units.clear()
        self._units.append(Unit(self._now(), False, ()))
        self._accumulate = state.accumulate

    def note(self, state: State) -> None:
        """Notes the end of an iteration, and in its row the pace of those that looked."""
        trains = state.phase == "train"
        for one in self.all.values():
            if one.looked():
                state.record(**{f"{one.name}_every": one.every[trains]})
                self._looked[one] = 1 if one.fastest.in_steps else self._looked.get(one, 0) + 1
        if trains and not state.stepped:
            return
        looked = [(one, looks, *one.spend()) for one, looks in self._looked.items()] if self._looked else ()
        self._looked.clear()
        self._units.append(Unit(self._now(), trains, looked))

    def wanted(self) -> list[float]:
        """The paces that this rank needs, two for each hook: in training, and in val and test; 0 where it has nothing
        to say."""
        self._reckon()
        self._settled_at = perf_counter()
        step_s = {trains: median(idle) if len(idle) >= LEAST_TIMED else 0.0 for trains, idle in self._idle.items()}
        return [
            one.wanted(trains, step_s[trains], self._accumulate)
            for one in self.all.values()
            for trains in (True, False)
        ]

    def settle(self, wanted: Sequence[float]) -> None:
        """Takes the paces that the ranks have agreed on, the largest of what each wanted."""
        for one, training, evaluating in zip(self.all.values(), wanted[::2], wanted[1::2], strict=True):
            one.settle(True, training, self._accumulate)
            one.settle(False, evaluating)

    def state_dict(self) -> dict[str, list[int]]:
        """The paces in force, by hook: in training, and in val and test."""
        return {name: [one.every[True], one.every[False]] for name, one in self.all.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[int]]) -> None:
        """Goes on at these paces, until looking has been measured."""
        for name, (training, evaluating) in state.items():
            if name in self.all:
                self.all[name].go_on(True, training)
                self.all[name].go_on(False, evaluating)

    def _reckon(self) -> None:
        units = self._units
        while len(units) > 1:
            span = units[1].ended - units[0].ended
            if not isinstance(span, float) and not span.ready():
                return
            units.popleft()
            unit, seconds = units[0], float(span)
            idle = self._idle[unit.trains]
            if not unit.looks:
                idle.append(seconds)
            for one, looks, within, beside in unit.looks:
                alone = len(unit.looks) == 1 and len(idle) > 0
                one.take(looks, within + beside, seconds - median(idle) - within if alone else None)


class Steering:
    """The pace of one hook: a power of two, so that the steps of a slower pace are among those of a faster one."""

    def __init__(self, name: str, hook: Hook, place: int, apart: int) -> None:
        assert isinstance(hook.budget, Budget)
        self.name, self._hook, self._share, self._apart = name, hook, hook.budget.share, apart
        paces = steered_paces(hook)
        least = min(map(_count, paces.values()))
        self.paces = {
            field: SteeredPace(isinstance(pace, Rhythm), place, _power(_count(pace) / least))
            for field, pace in paces.items()
        }
        self.fastest = min(self.paces.values(), key=lambda pace: pace.times)
        self._most = min(_most(hook, field) // pace.times for field, pace in self.paces.items())
        self.every = {True: 0, False: 0}
        """The pace in force, in training and in val and test; 0 is never, as long as none is known."""
        self.within: list[Call] = []
        self.beside: list[Call] = []
        self.looking: list[Call] = []
        self._calls, self._spent = 0, (0.0, 0.0)
        self._costs_s: deque[float] = deque(maxlen=max(_SEEN, *(pace.times for pace in self.paces.values())))
        """Of the last looks, as many as its slowest pace takes to come again: what one has cost is paid for by the time
        that these take."""
        self._longer_s: deque[float] = deque(maxlen=_SEEN)

    def looked(self) -> bool:
        """Whether it was called at its pace since this was asked last."""
        before, self._calls = self._calls, sum(call.made for call in self.looking)
        return self._calls > before

    def spend(self) -> tuple[float, float]:
        """The seconds in the ledger since this was asked last: within iterations, and beside them."""
        now = sum(call.host_s for call in self.within), sum(call.host_s for call in self.beside)
        before, self._spent = self._spent, now
        return now[0] - before[0], now[1] - before[1]

    def take(self, looks: int, seconds: float, longer_s: float | None) -> None:
        """Takes what some looks cost."""
        self._costs_s.extend([seconds / looks] * looks)
        if longer_s is not None:
            self._longer_s.append(longer_s / looks)

    def wanted(self, trains: bool, step_s: float, accumulate: int) -> float:
        """The pace at which it takes its share, given what a step, or an iteration of val and test, takes without
        it."""
        is_timed = self.looking and step_s > 0 and (trains or not self.fastest.in_steps)
        if not is_timed:
            return 0.0
        if not self._costs_s and self.every[trains]:
            return float(self.every[trains])
        cost_s = (
            fmean(self._costs_s) + max(0.0, median(self._longer_s or (0.0,))) if self._costs_s else step_s + ASSUMED_S
        )
        counted_s = step_s / accumulate if trains and not self.fastest.in_steps else step_s
        return max(cost_s / (AIM * self._share * counted_s), 1.0)

    def settle(self, trains: bool, wanted: float, accumulate: int = 1) -> None:
        """Takes a slower pace where one is wanted, and a faster one where it is surely enough."""
        if not wanted:
            return
        least = self._apart if self.fastest.in_steps else _power(self._apart * accumulate)
        slower, faster = (min(max(_power(number), least), self._most) for number in (wanted, MARGIN * wanted))
        present = self.every[trains]
        if slower > present or faster < present or not present:
            self.go_on(trains, slower if slower > present else faster)

    def go_on(self, trains: bool, every: int) -> None:
        """Goes on at a pace; in training the hook's fields hold it."""
        self.every[trains] = every
        for field, pace in self.paces.items():
            pace.set(trains, every * pace.times)
            if trains and every:
                setattr(self._hook, field, Rhythm(every * pace.times, "steps") if pace.in_steps else every * pace.times)


def _count(pace: Rhythm | int) -> int:
    return pace if isinstance(pace, int) else pace.count


def _power(number: float) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, ceil(log2(max(number, 1.0))))


def _most(hook: Hook, field: str) -> int:
    """The largest power of two that a field may hold."""
    limits = get_args(get_type_hints(type(hook), include_extras=True)[field])[1:]
    return min(
        (1 << int(limit.le).bit_length() - 1 for limit in limits if getattr(limit, "le", None) is not None),
        default=1 << 30,
    )
