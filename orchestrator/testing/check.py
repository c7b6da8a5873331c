"""The check of a hook: for hooks what scikit-learn's check_estimator is for estimators."""

from __future__ import annotations

import dataclasses
import inspect
import os
import tempfile
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

from hooks.hook import EVENTS, WITHIN_ITERATION, Hook, Setup
from hooks.interval import Interval
from orchestrator.config.python.parameters import construct, parameters
from orchestrator.errors import ConfigError
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.testing.checked_runs import NAME, CheckedRun, CheckedRuns, Moment, Refused, Situation
from orchestrator.testing.failure import CheckStopped, Failure, HookCheckFailed
from orchestrator.testing.fields import for_each, hypothesis, values_of
from orchestrator.testing.ranks import RanksFailed, on_two_ranks
from orchestrator.testing.training import SmallTask, one_thread
from orchestrator.testing.trees import difference

SITUATIONS = (Situation(), Situation(accumulate=2), Situation(ranks=2), Situation(ranks=2, strategy="fsdp"))
"""Where a hook is checked: in all of them with its defaults, and in one of them with each set of drawn fields."""

PARTS = tuple(part.name for part in dataclasses.fields(Moment))
"""What there is to compare at a report."""

_CONTAINERS = (dict, list, set, deque, bytearray)


def check_hook(
    cls: type[Hook],
    *,
    fields: Mapping[str, Any] | None = None,
    task: Task | None = None,
    varies: Collection[str] = (),
    examples: int = 10,
) -> None:
    """Checks that a hook keeps what hooks promise: `check_hook(MyHook)`, one line in a test. Takes some seconds.

    The hook runs in small loops on the CPU, with its defaults and with `examples` sets of fields drawn by their types
    and bounds: on one rank and on two (gloo processes, which stay for the next check), with accumulation, and sharded
    where it can be. Each loop is stopped and resumed at every report, and must come to the same bit by bit. `fields`
    are values as an experiment file would say them, for what cannot be drawn, such as names; `task` is for a hook that
    needs a certain one. Hook and task must be such that another process can import their classes. `varies` names
    columns, metrics and entries of state dicts that differ from run to run by what they are; those with a unit of
    time, speed or memory in their name do anyway. Raises HookCheckFailed with the check, the fields, the event, what
    differed and what to do, and ImportError where hypothesis is not installed.
    """
    given = {name: str(value) if isinstance(value, Interval) else value for name, value in (fields or {}).items()}
    subject = Subject(cls, task or SmallTask(), frozenset(varies))
    if not issubclass(cls, Hook):
        raise TypeError(f"check_hook takes a hook's class, such as check_hook(MyHook), got {cls!r}")
    failure = _look_at_class(cls)
    if failure:
        raise HookCheckFailed(failure.text(cls.__qualname__, "", ""))
    with one_thread():
        for situation in SITUATIONS:
            case = Case(given, situation)
            _raise_if(subject, case, _attempted(subject, case))
        if examples:
            _check_drawn(subject, given, examples)


@dataclasses.dataclass(frozen=True)
class Subject:
    """The hook's class, the task it is checked with, and what may differ from run to run."""

    cls: type[Hook]
    task: Task
    varies: frozenset[str] = frozenset()

    def make(self, values: Mapping[str, Any]) -> Hook:
        """A hook with these fields; raises ConfigError."""
        return construct(self.cls, values, self.cls.__qualname__)[0]


@dataclasses.dataclass(frozen=True)
class Case:
    """What a hook is checked with once: its fields, a loop, and what is changed while it goes on."""

    fields: Mapping[str, Any]
    situation: Situation
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.fields.items()) or "the defaults"
        changes = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        return f"{fields}; changed in flight to {changes}" if changes else fields


def _check_drawn(subject: Subject, given: Mapping[str, Any], examples: int) -> None:
    found: list[tuple[Case, Failure]] = []

    def attempt(drawn: dict[str, Any], changes: dict[str, Any], situation: Situation) -> None:
        case = Case({**given, **drawn}, situation, changes)
        outcome = None if found else _attempted(subject, case)
        if isinstance(outcome, Failure):
            found.append((case, outcome))

    drawn, changes = values_of(subject.cls, given), values_of(subject.cls, given, subject.cls.mutable)
    for_each(examples, attempt, drawn, changes, hypothesis().strategies.sampled_from(SITUATIONS))
    for case, failure in found:
        _raise_if(subject, *_fewest(subject, given, case, failure))


def _fewest(subject: Subject, given: Mapping[str, Any], case: Case, failure: Failure) -> tuple[Case, Failure]:
    """Without the fields and changes that the check fails without, too."""
    for name in [name for name in {**case.changes, **case.fields} if name not in given]:
        for part in ("changes", "fields"):
            others: dict[str, Any] = {
                part: {other: value for other, value in getattr(case, part).items() if other != name}
            }
            fewer = dataclasses.replace(case, **others)
            outcome = None if fewer == case else _attempted(subject, fewer)
            if isinstance(outcome, Failure) and outcome.check == failure.check:
                case, failure = fewer, outcome
    return case, failure


def _raise_if(subject: Subject, case: Case, outcome: Failure | str | None) -> None:
    """Raises HookCheckFailed for a failure, and for a refusal, which is one where nobody has drawn the fields."""
    if isinstance(outcome, str):
        outcome = Failure("runs", f"refuses to run: {outcome}", "give fields= and task= with which it can run")
    if outcome:
        raise HookCheckFailed(outcome.text(subject.cls.__qualname__, str(case), str(case.situation)))


# What can be seen without running


def _look_at_class(cls: type[Hook]) -> Failure | None:
    if "__dataclass_fields__" not in vars(cls):
        return Failure(
            "class",
            "it is no dataclass, so nothing can be said of it in an experiment",
            "put @dataclass above the class",
        )
    return _wrong_signature(cls) or _wrong_names(cls)


def _wrong_signature(cls: type[Hook]) -> Failure | None:
    methods = [
        *EVENTS,
        "state_dict",
        "load_state_dict",
        "rank_state_dict",
        "load_rank_state_dict",
        "unsuitable",
        "handles",
        "pace",
    ]
    for name in methods:
        method, declared = inspect.getattr_static(cls, name), getattr(Hook, name)
        if method is declared:
            continue
        wanted = inspect.signature(declared)
        written = f"def {name}({', '.join(wanted.parameters)})"
        if inspect.iscoroutinefunction(method):
            return Failure("signatures", f"{name} is a coroutine, which nobody awaits", f"write {written}")
        try:
            inspect.signature(getattr(cls, name)).bind(*wanted.parameters)
        except TypeError as error:
            return Failure(
                "signatures",
                f"{name}{inspect.signature(getattr(cls, name))} cannot be called as hooks are: {error}",
                f"write {written}",
            )
    return None


def _wrong_names(cls: type[Hook]) -> Failure | None:
    unknown = sorted(set(cls.mutable) - {*parameters(cls)})
    if unknown:
        return Failure(
            "class",
            f"mutable names {', '.join(unknown)}, which is no field; fields: {', '.join(parameters(cls))}",
            "name fields",
        )
    events = [event for event in WITHIN_ITERATION if getattr(cls, event) is not getattr(Hook, event)]
    unknown = sorted(set(cls.waits_for_device) - {*events})
    if unknown:
        return Failure(
            "class",
            f"waits_for_device names {', '.join(unknown)}, which it has no handler for; of an iteration it has"
            f" {', '.join(events) or 'none'}",
            "name events",
        )
    return None


# What is seen in a loop


def _attempted(subject: Subject, case: Case) -> Failure | str | None:
    """What fails; as text why the fields are refused; None where all is well."""
    try:
        reason = subject.make(case.fields).unsuitable(Setup("fsdp" if case.situation.strategy == "fsdp" else "ddp"))
    except ConfigError as error:
        return str(error)
    if reason:
        return None
    # In memory where there is a place for it: nothing of this is to outlast a machine, and disks are slow to promise
    # that.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        if case.situation.ranks == 1:
            return examined(World(), subject, case, folder)
        try:
            outcomes = on_two_ranks(examined, subject, case, folder)
        except RanksFailed as error:
            return Failure(
                "two ranks",
                str(error),
                "call collectives on all ranks alike; the classes of hook and task must be a module's own, which"
                " another process can import",
            )
    return next((outcome for outcome in outcomes if outcome), None)


def examined(world: World, subject: Subject, case: Case, folder: str) -> Failure | str | None:
    """What `_attempted` says, on one rank."""
    runs = CheckedRuns(subject.task, case.situation, world, Path(folder))
    try:
        return Examination(runs, subject, case, world).failure()
    except CheckStopped as stopped:
        return stopped.failure
    except Refused as refused:
        return str(refused)


class Examination:
    """Runs of one case on one rank, compared with each other."""

    def __init__(self, runs: CheckedRuns, subject: Subject, case: Case, world: World) -> None:
        self._runs, self._cls, self._case, self._world = runs, subject.cls, case, world
        self._make = partial(subject.make, case.fields)
        self._differ = partial(difference, varies=subject.varies)

    def failure(self) -> Failure | None:
        """The first check that fails."""
        shared = _class_containers(self._cls)
        before = {name: copy(value) for name, value in shared.items()}
        whole = self._runs.undisturbed(self._make())
        changed = next((name for name, value in shared.items() if value != before[name]), None)
        if changed:
            return Failure(
                "sharing",
                f"the class's own {changed} has changed, which all hooks of the class share",
                "make it an attribute of the instance, in __post_init__",
            )
        return (
            _off_pace(whole)
            or self._ranks_apart(whole)
            or self._repeated(whole)
            or self._observed(whole)
            or self._resumed(whole)
            or self._changed_in_flight()
            or self._two_of_a_kind()
        )

    def _resumed(self, whole: CheckedRun) -> Failure | None:
        to_do = (
            "give what must survive in state_dict() (in rank_state_dict() where ranks differ), and take it back in"
            " load_state_dict()"
        )
        if self._cls.observes:
            to_do += "; leave training alone in on_start and on_load"
        return self._unlike(
            "resumed", self._runs.resumed(self._make), whole, "stopped and resumed at every report", to_do
        )

    def _changed_in_flight(self) -> Failure | None:
        changes = self._case.changes
        if not changes:
            return None
        try:
            changed = construct(self._cls, {**self._case.fields, **changes}, self._cls.__qualname__)[0]
        except ConfigError:
            return None
        found = self._runs.changed(self._make(), {name: getattr(changed, name) for name in changes})
        expected = self._runs.resumed_once(self._make(), changed)
        to_do = "read the field anew wherever it is used, or take it out of mutable"
        return self._unlike(
            "changed in flight",
            found,
            expected,
            "with fields changed at the first report",
            to_do,
            "as resumed there with these fields",
        )

    def _repeated(self, whole: CheckedRun) -> Failure | None:
        if self._case.situation != SITUATIONS[0]:
            return None
        again = self._runs.undisturbed(self._make(), saved=False)
        to_do = (
            "keep nothing outside the instance, draw random numbers by torch, NumPy or random alone, and leave training"
            " alone in on_save"
        )
        how = "run again by a new hook and without checkpoints"
        return self._unlike(
            "repeated",
            again,
            whole,
            how,
            to_do,
            "as the first time",
            parts=("metrics", "parameters", "buffers", "optimizer"),
        )

    def _observed(self, whole: CheckedRun) -> Failure | None:
        """Where a hook says that it observes, training is the same without it, as far as the hook lets it go on."""
        if not self._cls.observes or self._case.situation.ranks > 1:
            return None
        without = self._runs.without()
        to_do = "leave weights, optimizer, random numbers and the rows of training alone, or take back that it observes"
        for number, (one, its) in enumerate(zip(whole.moments, without.moments, strict=False), 1):
            step, its_step = one.metrics.get("step"), its.metrics.get("step")
            if step != its_step:
                what = f"report {number} comes after step {step}, not {its_step}, as without the hook"
                return Failure(
                    "observes",
                    what,
                    "ask for an end by state.request_stop in on_phase_end alone, or take back that it observes",
                )
            drawn = [
                kind
                for kind, state in whole.random[number - 1].items()
                if self._differ(state, without.random[number - 1][kind])
            ]
            if drawn:
                return Failure(
                    "observes",
                    f"by report {number} random numbers of {' and '.join(drawn)} are drawn that are not without the"
                    " hook",
                    to_do,
                )
            for part in ("parameters", "buffers", "optimizer"):
                if told := self._differ(getattr(one, part), getattr(its, part)):
                    return Failure("observes", f"at report {number} {part}{told}, as without the hook", to_do)
        if len(whole.moments) == len(without.moments) and (told := self._differ(whole.end, without.end)):
            return Failure("observes", f"at the end {told}, as without the hook", to_do)
        rows, its_rows = ([row for row in run.rows if row["phase"] == "train"] for run in (whole, without))
        for row, its_row in zip(rows, its_rows, strict=False):
            if told := self._differ(row, its_row):
                return Failure(
                    "observes", f"the row of train iteration {row['iteration']}: {told}, as without the hook", to_do
                )
        return None

    def _two_of_a_kind(self) -> Failure | None:
        if self._case.situation != SITUATIONS[0]:
            return None
        first, second = self._make(), self._make()
        if first.unsuitable(Setup(hooks={NAME: first, "second": second})):
            return None
        try:
            self._runs.undisturbed(first, {"second": second}, saved=False)
        except (
            Exception,
            CheckStopped,
        ):  # not every hook can be there twice, and one that cannot fails in one way or another
            return None
        for name, value in vars(first).items():
            if isinstance(value, _CONTAINERS) and vars(second).get(name) is value:
                return Failure(
                    "sharing",
                    f"two hooks have the same {type(value).__name__} as their {name}",
                    "make one for each, by field(default_factory=...) or in __post_init__",
                )
        return None

    def _ranks_apart(self, run: CheckedRun) -> Failure | None:
        """What must be alike on all ranks: the parameters, where each has the whole of them, and the number of
        reports."""
        if self._case.situation.ranks == 1 or self._case.situation.strategy != "ddp":
            return None
        (parameters, reports), *others = self._world.gather((run.moments[-1].parameters, len(run.moments)))
        for rank, (other, its_reports) in enumerate(others, 1):
            if found := self._differ(other, parameters):
                return Failure(
                    "two ranks",
                    f"after training on rank {rank} the parameter {found}, as on rank 0",
                    "change weights and gradients alike on all ranks, by what all of them know",
                )
            if its_reports != reports:
                return Failure(
                    "two ranks",
                    f"rank 0 has {reports} reports, rank {rank} has {its_reports}",
                    "ask for an end by state.request_stop",
                )
        return None

    def _unlike(
        self,
        check: str,
        found: CheckedRun,
        expected: CheckedRun,
        how: str,
        to_do: str,
        other: str = "as undisturbed",
        parts: Sequence[str] = PARTS,
    ) -> Failure | None:
        """What a run has come to that another has not: by its reports, then by its rows."""
        if len(found.moments) != len(expected.moments):
            return Failure(
                check, f"{how} it makes {len(found.moments)} reports, not {len(expected.moments)}, {other}", to_do
            )
        for number, (one, its) in enumerate(zip(found.moments, expected.moments, strict=True), 1):
            for part in parts:
                if told := self._differ(getattr(one, part), getattr(its, part)):
                    return Failure(
                        check, f"{how}, at report {number} of {len(expected.moments)} {part}{told}, {other}", to_do
                    )
        for row, its_row in zip(found.rows, expected.rows, strict=True):
            if told := self._differ(row, its_row):
                return Failure(
                    check, f"{how}, the row of {row['phase']} iteration {row['iteration']}: {told}, {other}", to_do
                )
        return None


def _off_pace(run: CheckedRun) -> Failure | None:
    rows = sum(row["phase"] == "train" for row in run.rows)
    late = ((name, at) for watch in run.watches for name, at in watch.off_pace.items() if watch.recorded[name] < rows)
    name, iteration = next(late, ("", 0))
    to_do = (
        "put @paced_by('every') on the event, or ask self.every.due(state) in on_step: an interval in steps counts"
        " optimizer steps, not iterations"
    )
    return (
        Failure("pace", f"'{name}' is recorded in iteration {iteration}, which is none of the hook's pace", to_do)
        if name
        else None
    )


def _class_containers(cls: type[Hook]) -> dict[str, Any]:
    """The lists, dicts and the like that a class itself has, its parents included."""
    own = {
        name: value for one in reversed(cls.__mro__) for name, value in vars(one).items() if not name.startswith("__")
    }
    return {name: value for name, value in own.items() if isinstance(value, _CONTAINERS)}
