"""`check_hook`, the counterpart of scikit-learn's check_estimator for hooks."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hooks.hook import Hook, Setup
from hooks.interval import Interval
from orchestrator.config.python.parameters import construct, list_parameters
from orchestrator.errors import ConfigError
from orchestrator.loop.model.torch_settings import torch_threads
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.testing.checked_runs import GIVE_FIELDS, CheckedRun, CheckedRuns, Situation
from orchestrator.testing.ranks import RanksFailed, on_two_ranks
from orchestrator.testing.training import SmallTask
from orchestrator.testing.watching import CheckFailure, HookCheckFailed, find_difference

SITUATIONS = (Situation(), Situation(ranks=2, accumulate=2), Situation(ranks=2, strategy="fsdp"))
_KEEP_STATE = (
    "return what must survive from state_dict() (from rank_state_dict() if ranks differ), and restore it in"
    " load_state_dict(); draw random numbers with torch, NumPy or random, whose generators a checkpoint holds"
)
_Compare = Callable[[Any, Any], str]
"""Function that returns the first difference of two trees, or an empty text."""


def check_hook(
    cls: type[Hook],
    *,
    fields: Mapping[str, Any] | None = None,
    task: Task | None = None,
    varies: Collection[str] = (),
) -> None:
    """Check that a hook keeps the promises of hooks: `check_hook(MyHook)`, one line in a test. Takes seconds.

    The hook runs in small loops on the CPU: on one rank, on two with accumulation (gloo processes, which stay for the
    next check), and sharded if the hook allows it. Each loop is also stopped and resumed at every report, and must give
    the same results bit for bit.

    `fields` are values as in an experiment file; other fields have their defaults. `task` is for a hook that needs a
    special one. `varies` names columns, metrics and entries of state dicts that differ from run to run; names with a
    unit of time, speed or memory may always differ. Other processes must be able to import hook and task.

    Raises HookCheckFailed with the check, fields, difference and advice.
    """
    if not (isinstance(cls, type) and issubclass(cls, Hook)):
        raise TypeError(f"check_hook takes a hook's class, such as check_hook(MyHook), got {cls!r}")
    plain = {name: str(value) if isinstance(value, Interval) else value for name, value in (fields or {}).items()}
    case = Case(cls, task or SmallTask(), frozenset(varies), plain)
    try:
        _check_class(cls)
    except CheckFailure as error:
        raise HookCheckFailed(error.text(cls.__qualname__)) from None
    with torch_threads(1):
        for situation in SITUATIONS:
            case = dataclasses.replace(case, situation=situation)
            if failure := _run_checks(case):
                raise HookCheckFailed(failure.text(cls.__qualname__, str(case), str(situation)))


@dataclasses.dataclass(frozen=True)
class Case:
    """A hook, its fields, and the loop to check it in."""

    cls: type[Hook]
    task: Task
    varies: frozenset[str]
    fields: Mapping[str, Any]
    situation: Situation = SITUATIONS[0]

    def make(self, **changes: Any) -> Hook:
        """Make a hook with these fields, or raise ConfigError."""
        return construct(self.cls, {**self.fields, **changes}, self.cls.__qualname__)[0]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.fields.items()) or "the defaults"


# Checks of the class


def _check_class(cls: type[Hook]) -> None:
    if "__dataclass_fields__" not in vars(cls):
        what = "it is not a dataclass, so an experiment cannot set its fields"
        raise CheckFailure("class", what, "put @dataclass above the class")
    if unknown := sorted(set(cls.mutable) - {*list_parameters(cls)}):
        what = f"mutable names {', '.join(unknown)}, which is not a field; fields: {', '.join(list_parameters(cls))}"
        raise CheckFailure("class", what, "name fields")


# Checks in a loop


def _run_checks(case: Case) -> CheckFailure | None:
    """Run the checks of a case, and return the first failure."""
    strategy: Any = case.situation.strategy
    try:
        if case.make().unsuitable(Setup(strategy)):
            return None
    except ConfigError as error:
        return CheckFailure("runs", f"refuses its fields: {error}", GIVE_FIELDS)
    # Memory is faster than a disk, and nothing here has to survive the machine.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        if case.situation.ranks == 1:
            return check_on_rank(World(), case, folder)
        try:
            failures = on_two_ranks(check_on_rank, case, folder)
        except RanksFailed as error:
            to_do = (
                "call collectives on all ranks alike; define the classes of hook and task in a module, so that another"
                " process can import them"
            )
            return CheckFailure("two ranks", str(error), to_do)
    return next(filter(None, failures), None)


def check_on_rank(world: World, case: Case, folder: str) -> CheckFailure | None:
    """Run the checks of a case on one rank, and return the first failure."""
    runs = CheckedRuns(case.task, case.situation, world, Path(folder))
    compare = partial(find_difference, varies=case.varies)
    try:
        whole = runs.train(case.make())
        if case.situation.ranks == 1 and case.cls.observes:
            _check_observes(whole, runs.train(Hook()), compare)
        if case.situation.ranks > 1 and case.situation.strategy == "ddp":
            _check_ranks(world, whole, compare)
        resumed = runs.train(case.make(), lambda number: case.make())
        how, reference = "stopped and resumed at every report", "as in the uninterrupted run"
        _expect_equal(CheckFailure("resumed", how, _KEEP_STATE), resumed, whole, reference, compare)
        if case.situation == SITUATIONS[0]:
            _check_mutable(runs, case, compare)
    except CheckFailure as failure:
        return failure.with_traceback(None)
    return None


def _check_ranks(world: World, whole: CheckedRun, compare: _Compare) -> None:
    """Compare the parameters of all ranks after training."""
    parameters, *others = world.gather(whole.end["parameters"])
    for rank, other in enumerate(others, 1):
        if text := compare(other, parameters):
            what = f"after training on rank {rank} the parameter {text}, as on rank 0"
            raise CheckFailure("two ranks", what, "change weights and gradients on all ranks in the same way")


def _check_observes(whole: CheckedRun, without: CheckedRun, compare: _Compare) -> None:
    """Compare training with and without a hook that declares `observes`, up to where the hook ends it."""
    to_do = "leave weights, optimizer, random numbers and the rows of training alone, or remove `observes`"

    def fail(what: str, advice: str = to_do) -> NoReturn:
        raise CheckFailure("observes", f"{what}, as without the hook", advice)

    for number, (snapshot, other) in enumerate(zip(whole.snapshots, without.snapshots, strict=False), 1):
        step, other_step = snapshot["metrics"].get("step"), other["metrics"].get("step")
        if step != other_step:
            advice = "call state.request_stop only in on_phase_end, or remove `observes`"
            fail(f"report {number} comes after step {step}, not {other_step}", advice)
        for part in ("random", "parameters", "buffers", "optimizer"):
            if text := compare(snapshot[part], other[part]):
                fail(f"at report {number} {part}{text}")
    if len(whole.snapshots) == len(without.snapshots) and (text := compare(whole.end, without.end)):
        fail(f"at the end {text}")
    rows, other_rows = ([row for row in run.rows if row["phase"] == "train"] for run in (whole, without))
    for row, other_row in zip(rows, other_rows, strict=False):
        if text := compare(row, other_row):
            fail(f"the row of train iteration {row['iteration']}: {text}")


def _check_mutable(runs: CheckedRuns, case: Case, compare: _Compare) -> None:
    """Compare a change of mutable fields during a run with a resumed run that has the new values."""
    hook = case.make()
    changes = {name: _change_value(getattr(hook, name)) for name in sorted(case.cls.mutable)}
    try:
        changed = case.make(**changes)
    except ConfigError:  # out of bounds
        return
    if changed == hook:
        return
    changes = {name: getattr(changed, name) for name in changes}
    how = f"with {', '.join(f'{name}={value}' for name, value in changes.items())} from report 1 on"
    failure = CheckFailure("mutable", how, "read the field wherever it is used, or remove it from mutable")
    expected = runs.train(case.make(), lambda number: changed if number == 1 else None)
    reference = "as in a run resumed there with these fields"
    _expect_equal(failure, runs.train(case.make(), changes=changes), expected, reference, compare)


def _expect_equal(
    failure: CheckFailure, actual: CheckedRun, expected: CheckedRun, reference: str, compare: _Compare
) -> None:
    """Raise a failure with the first difference, in reports and then in rows."""

    def fail(what: str) -> NoReturn:
        raise CheckFailure(failure.check, f"{failure.what}, {what}, {reference}", failure.to_do)

    total = len(expected.snapshots)
    if len(actual.snapshots) != total:
        fail(f"it makes {len(actual.snapshots)} reports, not {total}")
    for number, (snapshot, other) in enumerate(zip(actual.snapshots, expected.snapshots, strict=True), 1):
        for part, value in snapshot.items():
            if text := compare(value, other[part]):
                fail(f"at report {number} of {total} {part}{text}")
    for row, other_row in zip(actual.rows, expected.rows, strict=True):
        if text := compare(row, other_row):
            fail(f"the row of {row['phase']} iteration {row['iteration']}: {text}")


def _change_value(value: Any) -> Any:
    """Return a value close to a field's value, or the same one if it is neither a number nor an interval."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Interval):
        return str(Interval(value.count + 1, value.unit))
    if isinstance(value, int):
        return value + 1
    return 0.8 * value if isinstance(value, float) else value
