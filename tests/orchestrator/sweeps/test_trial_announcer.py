from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.sections.sweep import Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.trial_announcer import TrialAnnouncer
from orchestrator.terminal.display import TerminalDisplay

SETTINGS = Sweep(metric="val/accuracy", trials=3, space={"optimizer.lr": {"uniform": [0.0, 1.0]}})


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: capsys.readouterr().err.splitlines()


def test_each_event_of_a_trial_is_a_line(lines: Any) -> None:
    with TerminalDisplay() as display:
        announcer = TrialAnnouncer(display, SETTINGS, {})
        announcer.begins("trial-0000", {"optimizer.lr": 0.123456})
        announcer.reported("trial-0000", {"val/accuracy": 0.9})
        announcer.reported("trial-0000", {"val/accuracy": 0.8})
        announcer.recovers("trial-0000", "rank 1: its process died")
        announcer.begins("trial-0000", {"optimizer.lr": 0.123456})
        announcer.ended("trial-0000", {"optimizer.lr": 0.123456})
        announcer.recovers("trial-0001", "the trial's process died")
        announcer.ended("trial-0001", {"optimizer.lr": 0.5}, "rank 0: broken")
    assert lines() == [
        "trial-0000 begins: optimizer.lr=0.1235",
        "trial-0000: rank 1: its process died; it resumes from its newest checkpoint on new processes",
        "trial-0000 [1/3] optimizer.lr=0.1235: val/accuracy 0.9",
        "trial-0001: the trial's process died; it begins on new processes",
        "trial-0001 [2/3] optimizer.lr=0.5: failed: rank 0: broken",
    ]


def test_what_an_earlier_attempt_reported_counts(lines: Any) -> None:
    previous = {
        0: PreviousTrial({"optimizer.lr": 0.1}, over=True, reports=({"val/accuracy": 0.7},)),
        1: PreviousTrial({"optimizer.lr": 0.2}, over=False, reports=({"val/accuracy": 0.6},)),
    }
    with TerminalDisplay() as display:
        announcer = TrialAnnouncer(display, SETTINGS, previous)
        announcer.reported("trial-0001", {"val/accuracy": 0.5})
        announcer.ended("trial-0001", {"optimizer.lr": 0.2})
    assert lines() == ["trial-0001 [2/3] optimizer.lr=0.2: val/accuracy 0.6"]
