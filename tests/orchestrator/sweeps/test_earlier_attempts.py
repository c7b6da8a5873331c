"""After an interruption, rules and schedulers decide as in an uninterrupted sweep."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import find_checkpoint_to_exploit, trial_folder
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps import earlier_attempts
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.earlier_attempts import compute_seconds_used, load_previous_trials
from orchestrator.sweeps.resume import _load_idle_trials
from orchestrator.sweeps.search.search import list_remaining_trials
from tests.orchestrator.runs.written import change
from tests.orchestrator.sweeps.search.draws import Draws, previous_trial
from tests.orchestrator.sweeps.test_stopping_rules import make_rules


def settings(**more: Any) -> SweepSettings:
    space = {"optimizer.lr": {"grid": [0.1, 0.2, 0.3]}}
    return SweepSettings.model_validate(
        {"metric": "val/score", "mode": "max", "search": "grid", "space": space, **more}
    )


def test_rules_count_earlier_reports() -> None:
    chosen = settings(stop={"max_reports": 3}, budget={"samples": 1000})
    use = BudgetUse(chosen.budget)
    rules = make_rules(chosen, use)
    reports = [{"val/score": 0.1, "samples": 400}, {"val/score": 0.2, "samples": 800}]
    rules.replay({0: previous_trial({}, "lost", reports, name="a")})
    assert use.explain_end() is None
    # A report that is repeated after a process was replaced does not count.
    assert not rules.add_report(0, 2, {"val/score": 0.2, "samples": 800}, 0)
    reason = rules.add_report(0, 3, {"val/score": 0.3, "samples": 1000}, 0)
    assert reason == "max_reports: 3 reached"
    assert use.explain_end() == "the sweep's budget of 1,000 samples is used up"


def begun(sweep: RunFolder, number: int, status: str, values: dict[str, Any]) -> RunFolder:
    folder = trial_folder(str(sweep), number)
    folder.begin("")
    return change(folder, status=status, values=values)


def test_the_remaining_trials_are_interrupted_failed_or_new(tmp_path: Path) -> None:
    sweep = RunFolder(tmp_path, "sweep")
    for number, status in enumerate(("finished", "stopped", "failed", "running", "interrupted")):
        begun(sweep, number, status, {"optimizer.lr": number})
    six = settings(space={"optimizer.lr": {"grid": [10, 11, 12, 13, 14, 15]}})
    previous = load_previous_trials(sweep, six, rerun_failed=False)
    assert list(Draws(six, 0, previous)) == [
        (3, {"optimizer.lr": 3}),
        (4, {"optimizer.lr": 4}),
        (5, {"optimizer.lr": 15}),
    ]
    again = load_previous_trials(sweep, six, rerun_failed=True)
    assert list_remaining_trials(six, again) == [2, 3, 4, 5]
    assert list_remaining_trials(settings(), again) == [2, 3, 4], (
        "3 and 4 began when the grid had more than three points"
    )


def test_a_trial_that_an_orphan_ends_meanwhile_is_read_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process stands for the trial's."""
    sweep = RunFolder(tmp_path, "sweep")
    trial = begun(sweep, 0, "running", {"optimizer.lr": 0.1})

    def end(_: float) -> None:
        trial.append_report({"attempt": 0, "time": "2026-01-01T00:01:00Z"})
        change(trial, status="finished")

    monkeypatch.setattr(earlier_attempts, "sleep", end)
    (record,) = _load_idle_trials(sweep, settings(), rerun_failed=False).values()
    assert (record.status, len(record.reported)) == ("finished", 1)


def test_the_time_of_earlier_attempts_is_from_their_start_to_their_last_report(
    tmp_path: Path,
) -> None:
    sweep = RunFolder(tmp_path, "sweep")
    sweep.begin("")
    change(
        sweep,
        started="2026-01-01T00:00:00Z",
        resumed=["2026-01-01T10:00:00Z", "2026-01-01T20:00:00Z"],
    )
    trial = begun(sweep, 0, "running", {})
    for attempt, moment in ((0, "00:00:40"), (0, "00:01:00"), (1, "10:00:30")):
        trial.append_report({"attempt": attempt, "time": f"2026-01-01T{moment}Z"})
    previous = load_previous_trials(sweep, settings(), rerun_failed=False)
    assert compute_seconds_used(sweep.read_metadata(), previous) == 60 + 30


def test_a_trial_interrupted_before_an_exploit_still_continues_the_other_s_checkpoint(
    tmp_path: Path,
) -> None:
    trial = begun(RunFolder(tmp_path, "sweep"), 0, "running", {})
    assert find_checkpoint_to_exploit(trial, None) is None
    assert find_checkpoint_to_exploit(trial, "elsewhere/epoch-0003") == "elsewhere/epoch-0003"
    assert find_checkpoint_to_exploit(trial, None) == "elsewhere/epoch-0003"
    trial.begin_attempt()
    assert find_checkpoint_to_exploit(trial, None) is None
