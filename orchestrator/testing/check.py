"""`check_hook`: for hooks what scikit-learn's check_estimator is for estimators."""

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
from typing import Any, NoReturn

from hooks.hook import EVENTS, WITHIN_ITERATION, Hook, Setup
from hooks.interval import Interval
from orchestrator.config.python.parameters import construct, parameters
from orchestrator.errors import ConfigError
from orchestrator.loop.model.torch_settings import torch_threads
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.testing.checked_runs import NAME, CheckedRun, CheckedRuns, Refused, Situation, Snapshot
from orchestrator.testing.fields import field_values, for_each, import_hypothesis
from orchestrator.testing.ranks import RanksFailed, on_two_ranks
from orchestrator.testing.training import SmallTask
from orchestrator.testing.trees import difference
from orchestrator.testing.watching import CheckFailure, HookCheckFailed

SITUATIONS = (Situation(), Situation(accumulate=2), Situation(ranks=2), Situation(ranks=2, strategy="fsdp"))
"""The defaults are checked in all of them, each set of drawn fields in one."""

_METHODS = ("state_dict", "load_state_dict", "rank_state_dict", "load_rank_state_dict", "unsuitable", "handles", "pace")
_PARTS = tuple(part.name for part in dataclasses.fields(Snapshot))
_CONTAINERS = (dict, list, set, deque, bytearray)


def check_hook(
    cls: type[Hook],
    *,
    fields: Mapping[str, Any] | None = None,
    task: Task | None = None,
    varies: Collection[str] = (),
    examples: int = 10,
) -> None:
    """Check that a hook keeps the promises of hooks: `check_hook(MyHook)`, one line in a test. Takes seconds.

    The hook runs in small loops on the CPU, with its defaults and with `examples` sets of fields, drawn by type and
    bounds: on one rank, on two (gloo processes, which stay for the next check), with accumulation, and sharded if the
    hook allows it. Each loop is stopped and resumed at every report, and must give the same results bit for bit.

    `fields` are values as in an experiment file, for what cannot be drawn, such as names. `task` is for a hook that
    needs a special one. `varies` names columns, metrics and entries of state dicts that differ from run to run; names
    with a unit of time, speed or memory may always differ. Other processes must be able to import hook and task.

    Raises HookCheckFailed with the check, fields, event, difference and advice; ImportError without hypothesis.
    """
    if not (isinstance(cls, type) and issubclass(cls, Hook)):
        raise TypeError(f"check_hook takes a hook's class, such as check_hook(MyHook), got {cls!r}")
    try:
        _check_class(cls)
    except CheckFailure as failure:
        raise HookCheckFailed(failure.text(cls.__qualname__)) from None
    fixed = {name: str(value) if isinstance(value, Interval) else value for name, value in (fields or {}).items()}
    case = Case(cls, task or SmallTask(), frozenset(varies), fixed)
    with torch_threads(1):
        for situation in SITUATIONS:
            _require(dataclasses.replace(case, situation=situation))
        if examples:
            _check_drawn(case, examples)


@dataclasses.dataclass(frozen=True)
class Case:
    """A hook, its fields, and the loop to check it in."""

    cls: type[Hook]
    task: Task
    varies: frozenset[str]
    fields: Mapping[str, Any]
    situation: Situation = SITUATIONS[0]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """New values of fields, from the first report on."""

    def make(self, changes: Mapping[str, Any] | None = None) -> Hook:
        """Make a hook with these fields; raise ConfigError."""
        return construct(self.cls, {**self.fields, **(changes or {})}, self.cls.__qualname__)[0]

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.fields.items()) or "the defaults"
        changes = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        return f"{fields}; changed in flight to {changes}" if changes else fields


def _require(case: Case) -> None:
    outcome = _outcome(case)
    if isinstance(outcome, Refused):
        outcome = CheckFailure("runs", f"refuses to run: {outcome}", "give fields= and task= with which it can run")
    if outcome:
        raise HookCheckFailed(outcome.text(case.cls.__qualname__, str(case), str(case.situation)))


def _check_drawn(case: Case, examples: int) -> None:
    failures: list[tuple[Case, CheckFailure]] = []

    def attempt(drawn: dict[str, Any], changes: dict[str, Any], situation: Situation) -> None:
        example = dataclasses.replace(case, fields={**case.fields, **drawn}, situation=situation, changes=changes)
        if not failures and isinstance(outcome := _outcome(example), CheckFailure):
            failures.append((example, outcome))

    drawn, changes = field_values(case.cls, case.fields), field_values(case.cls, case.fields, case.cls.mutable)
    for_each(examples, attempt, drawn, changes, import_hypothesis().strategies.sampled_from(SITUATIONS))
    for example, failure in failures:
        _require(_simplify(example, failure, fixed=case.fields))


def _simplify(case: Case, failure: CheckFailure, fixed: Collection[str]) -> Case:
    """Drop the fields and changes without which the same check fails too."""
    for name in [name for name in {**case.changes, **case.fields} if name not in fixed]:
        for part in ("changes", "fields"):
            rest = {key: value for key, value in getattr(case, part).items() if key != name}
            replacement: dict[str, Any] = {part: rest}
            simpler = dataclasses.replace(case, **replacement)
            outcome = None if simpler == case else _outcome(simpler)
            if isinstance(outcome, CheckFailure) and outcome.check == failure.check:
                case = simpler
    return case


# Checks of the class


def _check_class(cls: type[Hook]) -> None:
    if "__dataclass_fields__" not in vars(cls):
        what = "it is not a dataclass, so an experiment cannot set its fields"
        raise CheckFailure("class", what, "put @dataclass above the class")
    for name in (*EVENTS, *_METHODS):
        method, declared = inspect.getattr_static(cls, name), getattr(Hook, name)
        if method is declared:
            continue
        expected = inspect.signature(declared).parameters
        to_do = f"write def {name}({', '.join(expected)})"
        if inspect.iscoroutinefunction(method):
            raise CheckFailure("signatures", f"{name} is a coroutine, and is never awaited", to_do)
        try:
            inspect.signature(getattr(cls, name)).bind(*expected)
        except TypeError as error:
            what = f"{name}{inspect.signature(getattr(cls, name))} does not take the arguments of hooks: {error}"
            raise CheckFailure("signatures", what, to_do) from None
    if unknown := sorted(set(cls.mutable) - {*parameters(cls)}):
        what = f"mutable names {', '.join(unknown)}, which is not a field; fields: {', '.join(parameters(cls))}"
        raise CheckFailure("class", what, "name fields")
    events = [event for event in WITHIN_ITERATION if getattr(cls, event) is not getattr(Hook, event)]
    if unknown := sorted(set(cls.waits_for_device) - {*events}):
        handled = f"of an iteration it handles {', '.join(events) or 'none'}"
        what = f"waits_for_device names {', '.join(unknown)}, which the hook does not handle; {handled}"
        raise CheckFailure("class", what, "name events")


# Checks in a loop


def _outcome(case: Case) -> CheckFailure | Refused | None:
    """Run the checks of a case; return the first that fails, or the hook's refusal of its fields."""
    strategy: Any = case.situation.strategy
    try:
        if case.make().unsuitable(Setup(strategy)):
            return None
    except ConfigError as error:
        return Refused(str(error))
    # Memory is faster than a disk, and nothing here has to survive the machine.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        if case.situation.ranks == 1:
            return check_on_rank(World(), case, folder)
        try:
            outcomes = on_two_ranks(check_on_rank, case, folder)
        except RanksFailed as error:
            to_do = (
                "call collectives on all ranks alike; define the classes of hook and task in a module, so that another"
                " process can import them"
            )
            return CheckFailure("two ranks", str(error), to_do)
    return next(filter(None, outcomes), None)


def check_on_rank(world: World, case: Case, folder: str) -> CheckFailure | Refused | None:
    """Run the checks of a case on one rank."""
    try:
        _Checks(world, case, folder).run()
    except (CheckFailure, Refused) as outcome:
        return outcome.with_traceback(None)
    return None


class _Checks:
    """Checks that compare the runs of one case on one rank; each raises CheckFailure."""

    def __init__(self, world: World, case: Case, folder: str) -> None:
        self._world, self._case, self._cls = world, case, case.cls
        self._runs = CheckedRuns(case.task, case.situation, world, Path(folder))
        self._difference = partial(difference, varies=case.varies)

    def run(self) -> None:
        whole = self._check_class_state()
        _check_pace(whole)
        if self._case.situation.ranks > 1 and self._case.situation.strategy == "ddp":
            self._check_ranks(whole)
        if self._case.situation == SITUATIONS[0]:
            self._check_repeated(whole)
        if self._cls.observes and self._case.situation.ranks == 1:
            self._check_observes(whole)
        self._check_resumed(whole)
        if self._case.changes:
            self._check_changes()
        if self._case.situation == SITUATIONS[0]:
            self._check_two_hooks()

    def _check_class_state(self) -> CheckedRun:
        """Train undisturbed, and check that containers of the class do not change."""
        containers = {
            name: value
            for base in reversed(self._cls.__mro__)
            for name, value in vars(base).items()
            if isinstance(value, _CONTAINERS) and not name.startswith("__")
        }
        before = {name: copy(value) for name, value in containers.items()}
        whole = self._runs.train(self._case.make())
        if changed := next((name for name, value in containers.items() if value != before[name]), None):
            raise CheckFailure(
                "sharing",
                f"the class's own {changed} has changed, which all hooks of the class share",
                "make it an attribute of the instance, in __post_init__",
            )
        return whole

    def _check_ranks(self, whole: CheckedRun) -> None:
        """Compare the parameters and the number of reports of all ranks."""
        (parameters, reports), *others = self._world.gather((whole.snapshots[-1].parameters, len(whole.snapshots)))
        for rank, (other, other_reports) in enumerate(others, 1):
            if text := self._difference(other, parameters):
                what = f"after training on rank {rank} the parameter {text}, as on rank 0"
                raise CheckFailure("two ranks", what, "change weights and gradients on all ranks in the same way")
            if other_reports != reports:
                what = f"rank 0 has {reports} reports, rank {rank} has {other_reports}"
                raise CheckFailure("two ranks", what, "end a run with state.request_stop")

    def _check_repeated(self, whole: CheckedRun) -> None:
        self._expect_equal(
            "repeated",
            self._runs.train(self._case.make(), saves=False),
            whole,
            "run again by a new hook and without checkpoints",
            "keep no state outside the instance, draw random numbers with torch, NumPy or random, and leave training"
            " alone in on_save",
            "as the first time",
            parts=("metrics", "parameters", "buffers", "optimizer"),
        )

    def _check_observes(self, whole: CheckedRun) -> None:
        """Compare training with and without a hook that declares `observes`, up to where the hook ends it."""
        without = self._runs.train(Hook())
        to_do = "leave weights, optimizer, random numbers and the rows of training alone, or remove `observes`"

        def fail(what: str, advice: str = to_do) -> NoReturn:
            raise CheckFailure("observes", f"{what}, as without the hook", advice)

        for number, (snapshot, other) in enumerate(zip(whole.snapshots, without.snapshots, strict=False), 1):
            step, other_step = snapshot.metrics.get("step"), other.metrics.get("step")
            if step != other_step:
                advice = "call state.request_stop only in on_phase_end, or remove `observes`"
                fail(f"report {number} comes after step {step}, not {other_step}", advice)
            generators, others = whole.random[number - 1], without.random[number - 1]
            drawn = [kind for kind, state in generators.items() if self._difference(state, others[kind])]
            if drawn:
                fail(f"by report {number} the random numbers of {' and '.join(drawn)} are not the same")
            for part in ("parameters", "buffers", "optimizer"):
                if text := self._difference(getattr(snapshot, part), getattr(other, part)):
                    fail(f"at report {number} {part}{text}")
        if len(whole.snapshots) == len(without.snapshots) and (text := self._difference(whole.end, without.end)):
            fail(f"at the end {text}")
        rows, other_rows = ([row for row in run.rows if row["phase"] == "train"] for run in (whole, without))
        for row, other_row in zip(rows, other_rows, strict=False):
            if text := self._difference(row, other_row):
                fail(f"the row of train iteration {row['iteration']}: {text}")

    def _check_resumed(self, whole: CheckedRun) -> None:
        to_do = (
            "return what must survive from state_dict() (from rank_state_dict() if ranks differ), and restore it in"
            " load_state_dict()"
        )
        if self._cls.observes:
            to_do += "; leave training alone in on_start and on_load"
        resumed = self._runs.train(self._case.make(), lambda number: self._case.make())
        self._expect_equal("resumed", resumed, whole, "stopped and resumed at every report", to_do)

    def _check_changes(self) -> None:
        changes = self._case.changes
        try:
            changed = self._case.make(changes)
        except ConfigError:
            return
        self._expect_equal(
            "changed in flight",
            self._runs.train(self._case.make(), changes={name: getattr(changed, name) for name in changes}),
            self._runs.train(self._case.make(), lambda number: changed if number == 1 else None),
            "with fields changed at the first report",
            "read the field wherever it is used, or remove it from mutable",
            "as resumed there with these fields",
        )

    def _check_two_hooks(self) -> None:
        first, second = self._case.make(), self._case.make()
        if first.unsuitable(Setup(hooks={NAME: first, "second": second})):
            return
        try:
            self._runs.train(first, other_hooks={"second": second}, saves=False)
        except (Exception, CheckFailure):  # not every hook can be there twice, and each fails in its own way
            return
        for name, value in vars(first).items():
            if isinstance(value, _CONTAINERS) and vars(second).get(name) is value:
                what = f"two hooks have the same {type(value).__name__} as their {name}"
                to_do = "make one for each, with field(default_factory=...) or in __post_init__"
                raise CheckFailure("sharing", what, to_do)

    def _expect_equal(
        self,
        check: str,
        actual: CheckedRun,
        expected: CheckedRun,
        how: str,
        to_do: str,
        reference: str = "as undisturbed",
        parts: Sequence[str] = _PARTS,
    ) -> None:
        """Raise CheckFailure for the first difference in reports, then in rows."""
        total = len(expected.snapshots)
        if len(actual.snapshots) != total:
            raise CheckFailure(
                check, f"{how} it makes {len(actual.snapshots)} reports, not {total}, {reference}", to_do
            )
        for number, (snapshot, other) in enumerate(zip(actual.snapshots, expected.snapshots, strict=True), 1):
            for part in parts:
                if text := self._difference(getattr(snapshot, part), getattr(other, part)):
                    raise CheckFailure(check, f"{how}, at report {number} of {total} {part}{text}, {reference}", to_do)
        for row, other_row in zip(actual.rows, expected.rows, strict=True):
            if text := self._difference(row, other_row):
                place = f"the row of {row['phase']} iteration {row['iteration']}"
                raise CheckFailure(check, f"{how}, {place}: {text}, {reference}", to_do)


def _check_pace(run: CheckedRun) -> None:
    rows = sum(row["phase"] == "train" for row in run.rows)
    for watch in run.watches:
        for name, iteration in watch.early.items():
            if watch.counts[name] < rows:
                raise CheckFailure(
                    "pace",
                    f"'{name}' is recorded in iteration {iteration}, where the hook's interval is not due",
                    "put @paced_by('every') on the event, or ask self.every.due(state) in on_step: an interval in steps"
                    " counts optimizer steps, not iterations",
                )
