"""Checks of a hook in small runs: that it resumes, observes and changes as it promises."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hooks.hook import Hook
from hooks.interval import Interval
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.construction import construct
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.testing.check_failure import CheckFailure
from orchestrator.testing.checked_runs import (
    TRAINING,
    CheckedRun,
    CheckedRuns,
    Situation,
)
from orchestrator.testing.differences import find_difference
from orchestrator.units import format_count

_KEEP_STATE = (
    "return what must survive from state_dict() (from rank_state_dict() if ranks differ), "
    "and restore it in load_state_dict(); "
    "draw random numbers with torch, NumPy or random, whose generators a checkpoint holds"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A hook, its fields, and the loop to check it in."""

    cls: type[Hook]
    task: Task
    varies: frozenset[str]
    fields: Mapping[str, Any]
    situation: Situation

    def make(self, **changes: Any) -> Hook:
        """Make a hook with these fields, or raise ConfigError."""
        return construct(self.cls, {**self.fields, **changes}, self.cls.__qualname__)[0]

    def find_difference(self, actual: Any, expected: Any) -> str:
        """Return the first difference of two trees; empty if they are equal."""
        return find_difference(actual, expected, varies=self.varies)

    def find_run_difference(self, actual: CheckedRun, expected: CheckedRun) -> str:
        """Return the first difference of two runs, in reports and then in rows; empty if they are
        equal."""
        total = len(expected.reports)
        if len(actual.reports) != total:
            return f"it makes {format_count(len(actual.reports), 'report')}, not {total}"
        for number, reports in enumerate(zip(actual.reports, expected.reports, strict=True), 1):
            if text := self.find_difference(*reports):
                return f"at report {number} of {total} {text}"
        for row, other_row in zip(actual.rows, expected.rows, strict=True):
            if text := self.find_difference(row, other_row):
                return f"the row of {row['phase']} iteration {row['iteration']}: {text}"
        return ""

    def __str__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.fields.items()]
        return ", ".join(fields) or "the defaults"


def find_failure_on_rank(world: World, case: Case, folder: str) -> CheckFailure | None:
    """Run the checks of a case on one rank, and return the first failure."""
    runs = CheckedRuns(case.task, case.situation, world, Path(folder))
    try:
        whole = runs.train(case.make())
        if case.situation.ranks == 1 and case.cls.observes:
            _check_observes(case, whole, runs.train(Hook()))
        if case.situation.ranks > 1 and case.situation.strategy == "ddp":
            _check_ranks(case, world, whole)
        resumed = runs.train(case.make(), lambda number: case.make())
        if text := case.find_run_difference(resumed, whole):
            what = f"stopped and resumed at every report, {text}, as in the uninterrupted run"
            raise CheckFailure("resumed", what, _KEEP_STATE)
        if case.situation.ranks == 1:
            _check_mutable(case, runs)
    except CheckFailure as failure:
        return failure.with_traceback(None)
    return None


def _check_ranks(case: Case, world: World, whole: CheckedRun) -> None:
    """Compare the parameters of all ranks after training."""
    parameters, *others = world.gather(whole.end["parameters"])
    for rank, other in enumerate(others, 1):
        if text := case.find_difference(other, parameters):
            what = f"after training on rank {rank} the parameter {text}, as on rank 0"
            raise CheckFailure(
                "two ranks", what, "change weights and gradients on all ranks in the same way"
            )


def _check_observes(case: Case, whole: CheckedRun, without: CheckedRun) -> None:
    """Compare training with and without a hook that declares `observes`.

    The hook may end the run between two phases, so only what both runs have is compared.
    """
    reports = zip(whole.reports, without.reports, strict=False)
    for number, (report, other) in enumerate(reports, 1):
        _require_equal(case, f"at report {number}", report[TRAINING], other[TRAINING])
    if len(whole.reports) == len(without.reports):
        _require_equal(case, "at the end", whole.end, without.end)

    rows = zip(_select_training_rows(whole), _select_training_rows(without), strict=False)
    for row, other in rows:
        _require_equal(case, f"the row of train iteration {row['iteration']}:", row, other)


def _select_training_rows(run: CheckedRun) -> list[dict[str, Any]]:
    return [row for row in run.rows if row["phase"] == "train"]


def _require_equal(case: Case, place: str, actual: Any, expected: Any) -> None:
    """Raise CheckFailure if training differs from training without the hook."""
    if text := case.find_difference(actual, expected):
        raise CheckFailure(
            "observes",
            f"{place} {text}, as without the hook",
            "leave weights, optimizer, random numbers and the rows of training alone, and call "
            "state.request_stop only in on_phase_end; or remove `observes`",
        )


def _check_mutable(case: Case, runs: CheckedRuns) -> None:
    """Compare a change of mutable fields during a run with a resumed run of the new values."""
    hook = case.make()
    new_values = {name: _change_value(getattr(hook, name)) for name in sorted(case.cls.mutable)}
    try:
        changed = case.make(**new_values)
    except ConfigError:
        # The new values are out of bounds.
        return
    if changed == hook:
        return

    changes = {name: getattr(changed, name) for name in new_values}
    expected = runs.train(case.make(), lambda number: changed if number == 1 else None)
    actual = runs.train(case.make(), changes=changes)
    if text := case.find_run_difference(actual, expected):
        values = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise CheckFailure(
            "mutable",
            f"with {values} from report 1 on, {text}, as in a run resumed there with these fields",
            "read the field wherever it is used, or remove it from mutable",
        )


def _change_value(value: Any) -> Any:
    """Return a value close to a field's value, or the same one if it is neither a number nor an
    interval."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Interval):
        return str(Interval(value.count + 1, value.unit))
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.8 * value
    return value
