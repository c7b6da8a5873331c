"""Lines of a sweep's terminal, and what the search, the rules and the index learn of its trials."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.runs.alerts import Alerts
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import Search
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.terminal.display import PLAIN_INTERVAL_S, TerminalDisplay
from tests.orchestrator.sweeps.search.draws import previous_trial
from tests.tasks import described

SETTINGS = {
    "metric": "val/accuracy",
    "trials": 3,
    "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}},
}


def running(
    folder: Path, previous: dict[int, TrialRecord] | None = None, **settings: Any
) -> RunningSweep:
    display = TerminalDisplay(clock=itertools.count(0, PLAIN_INTERVAL_S).__next__)
    run_folder = RunFolder(folder)
    return RunningSweep(
        described(sweep={**SETTINGS, **settings}),
        run_folder,
        previous or {},
        display,
        Alerts(None, run_folder),
        SweepEnd(BudgetUse(None), lambda: False),
    )


def test_each_event_of_a_trial_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = running(tmp_path)
    sweep.begin({0: {"optimizer.lr": 0.123456}})
    assert [folder.name for folder in sweep.list_active_trials()] == ["trial-0000"]
    sweep.add_report(0, 1, {"val/accuracy": 0.9}, 1.0)
    sweep.add_report(0, 2, {"val/accuracy": 0.8}, 2.0)
    sweep.show_recovery(0, "rank 1: its process died")
    sweep.begin({0: {"optimizer.lr": 0.123456}})
    sweep.record_end(0, {"optimizer.lr": 0.123456}, "finished")
    sweep.show_recovery(1, "the trial's process died")
    sweep.add_report(1, 1, {"val/accuracy": 0.95}, 1.0)
    sweep.record_failure(1, {"optimizer.lr": 0.5}, "a bug of the task", metric_missing=False)
    sweep.begin({2: {"optimizer.lr": 0.7}})
    sweep.record_end(2, {"optimizer.lr": 0.7}, "interrupted")
    assert capsys.readouterr().err.splitlines() == [
        "trial-0000 begins: optimizer.lr=0.1235",
        "trials 0/3 best val/accuracy 0.9",
        "trial-0000: rank 1: its process died; it resumes from its newest checkpoint on new processes",
        "trial-0000 [1/3] optimizer.lr=0.1235: val/accuracy 0.9",
        "trials 1/3 best val/accuracy 0.9",
        "trial-0001: the trial's process died; it begins on new processes",
        "trials 1/3 best val/accuracy 0.95",
        "trial-0001 [2/3] optimizer.lr=0.5: failed: a bug of the task",
        "trials 2/3 best val/accuracy 0.9",
        "trial-0002 begins: optimizer.lr=0.7",
        "trial-0002 optimizer.lr=0.7: interrupted",
    ]
    assert sweep.list_active_trials() == []


def test_available_metrics_are_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep ends with the whole error."""
    sweep = running(tmp_path)
    error = "no report of a trial has the sweep's metric 'val/accuracy'; available: val/loss"
    for number in range(2):
        sweep.record_failure(number, {"optimizer.lr": 0.5}, error, metric_missing=True)
    assert sweep.end.metric_missing == error
    assert [line for line in capsys.readouterr().err.splitlines() if "failed" in line] == [
        f"trial-000{number} [{number + 1}/3] optimizer.lr=0.5: failed: no report of a trial has the"
        " sweep's metric 'val/accuracy'"
        for number in range(2)
    ]


def test_the_search_learns_the_last_report_of_a_trial_also_of_an_earlier_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 0 was interrupted after its last report, and so makes no other."""
    reports = [{"val/accuracy": 0.9}, {"val/accuracy": 0.8}]
    previous = {
        number: previous_trial({}, "lost", reports, name=f"trial-000{number}")
        for number in range(2)
    }
    sweep = running(tmp_path, previous)
    learned = []

    def learn(
        search: Search, number: int, last: Mapping[str, Any] | None, excesses: Sequence[float] = ()
    ) -> None:
        learned.append(last)

    monkeypatch.setattr(Search, "record_end", learn)
    sweep.record_end(0, {}, "finished")
    sweep.add_report(1, 3, {"val/accuracy": 0.7}, 1.0)
    sweep.record_end(1, {}, "finished")
    sweep.record_failure(2, {}, "broken", metric_missing=False)
    sweep.add_report(3, 1, {"val/accuracy": 0.6}, 1.0)
    sweep.record_end(3, {}, "interrupted")
    assert learned == [{"val/accuracy": 0.8}, {"val/accuracy": 0.7}, None]


def test_a_metric_that_no_trial_reports_ends_the_sweep(tmp_path: Path) -> None:
    sweep = running(tmp_path / "first")
    sweep.record_failure(0, {}, "no such metric", metric_missing=True)
    assert sweep.end.is_due()
    assert sweep.end.metric_missing == "no such metric"
    assert sweep.find_ending(1) == ("interrupted", "trial-0000 failed, which ends the sweep")

    others = running(tmp_path / "second")
    others.add_report(0, 1, {"val/accuracy": 1.0}, 0)
    others.record_failure(1, {}, "no such metric", metric_missing=True)
    assert not others.end.is_due()
    assert others.end.metric_missing is None
    assert others.find_ending(0) == ("stopped", "fifo ended the trial after report 1")


def report_once(sweep: RunningSweep, *scores: float) -> list[str | None]:
    """Let each trial report a score, and return the reasons to stop them."""
    return [
        sweep.add_report(number, 1, {"val/accuracy": score}, 1.0)
        for number, score in enumerate(scores)
    ]


def test_the_scheduler_stops_a_trial_that_is_worse_than_half_of_the_others(tmp_path: Path) -> None:
    sweep = running(tmp_path, scheduler="asha")
    reason = "asha ended the trial after report 1"
    assert report_once(sweep, 0.2, 0.1, 0.3) == [None, reason, None]
    assert sweep.reasons_to_stop == {1: reason}
    assert sweep.find_ending(1) == ("stopped", reason)


def test_a_trial_that_a_rule_stops_is_a_rival_for_the_scheduler(tmp_path: Path) -> None:
    """The target is reached by the first trial, and the second is worse than that."""
    sweep = running(tmp_path, scheduler="asha", stop={"target": 0.8})
    reached = "val/accuracy 0.9 reached the target 0.8"
    pruned = "asha ended the trial after report 1"
    assert report_once(sweep, 0.9, 0.1) == [reached, pruned]
    assert sweep.find_ending(0) == ("stopped", reached)
