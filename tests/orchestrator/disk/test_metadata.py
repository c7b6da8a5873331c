import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import Evaluated, Provenance, RunMetadata, TrialSettings
from orchestrator.disk.new_run import create_run
from orchestrator.disk.reports import drop_superseded


def line(attempt: int, step: int, **values: Any) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "iteration": step, "val/loss": 0.0, **values}


def attempt(number: int, step: int = 0, stage: Stage = Stage.TRAINED) -> Attempt:
    return Attempt(number, position=Position(step=step, stage=stage, iteration=step))


FRESH = Attempt(0)


def test_reports_after_the_start_of_a_later_attempt_are_superseded() -> None:
    lines = [line(0, 5), line(0, 10), line(0, 15), line(1, 15), line(1, 20)]
    assert drop_superseded(lines, [FRESH, attempt(1, 12, Stage.TRAIN)]) == [
        line(0, 5),
        line(0, 10),
        line(1, 15),
        line(1, 20),
    ]


def test_report_at_the_start_is_superseded_unless_the_checkpoint_follows_it() -> None:
    lines = [line(0, 5), line(1, 10)]
    for stage in (Stage.TRAIN, Stage.TRAINED, Stage.VALIDATED):
        assert drop_superseded(lines, [FRESH, attempt(1, 5, stage)]) == [line(1, 10)]
    assert drop_superseded(lines, [FRESH, attempt(1, 5, Stage.REPORTED)]) == lines


def test_report_before_a_skipped_step_is_kept() -> None:
    lines = [line(0, 7, iteration=7), line(0, 7, iteration=8), line(1, 7, iteration=8)]
    start = Attempt(1, position=Position(step=7, iteration=8, stage=Stage.TRAINED))
    assert drop_superseded(lines, [FRESH, start]) == [lines[0], lines[2]]


def test_any_later_attempt_supersedes_reports() -> None:
    """The second attempt resumes at the first's last report, and the third before it."""
    lines = [line(0, 5), line(0, 10), line(1, 15), line(2, 10), line(2, 15)]
    attempts = [FRESH, attempt(1, 10, Stage.REPORTED), attempt(2, 7, Stage.TRAIN)]
    assert drop_superseded(lines, attempts) == [line(0, 5), line(2, 10), line(2, 15)]


def test_every_attempt_repeats_the_report_of_the_test_phase() -> None:
    tested = {"attempt": 0, "step": 10, "iteration": 10, "test/loss": 1.0}
    again = {**tested, "attempt": 1}
    lines = [line(0, 10), tested, again]
    assert drop_superseded(lines, [FRESH, attempt(1, 10, Stage.REPORTED)]) == [line(0, 10), again]


def test_the_time_of_a_run_leaves_out_the_pause_before_a_resume() -> None:
    """It ran for 4 s, was resumed an hour later, and ran for 6 s."""
    first = RunMetadata(
        name="run",
        status="interrupted",
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:04+00:00",
    )
    resumed = replace(
        first,
        status="finished",
        resumed=["2026-01-01T01:00:00+00:00"],
        earlier_s=first.measure_seconds([]),
        ended="2026-01-01T01:00:06+00:00",
    )
    assert (first.wall_s, resumed.wall_s) == (4.0, 10.0)
    running = replace(resumed, status="running")
    assert running.measure_seconds([]) is None
    reports = [{"time": f"2026-01-01T01:00:0{second}+00:00"} for second in (1, 5)]
    assert running.measure_seconds(reports) == 9.0, "its driver died after the last report"
    assert running.measure_seconds([{"time": "2026-01-01T00:00:03Z"}]) == 4.0, "before any"


def test_an_evaluation_and_a_prediction_are_of_different_kinds() -> None:
    run = RunMetadata(name="run", status="finished", started="2026-01-01T00:00:00+00:00")
    checkpoint: dict[str, Any] = {
        "run": "runs/a",
        "checkpoint": "epoch-0001",
        "sha256": "",
        "epoch": 1,
        "step": 4,
        "phase": "val",
    }
    evaluation = Evaluated(**checkpoint)
    prediction = Evaluated(**checkpoint, verb="predict")
    kinds = [replace(run, evaluates=evaluated).kind for evaluated in (None, evaluation, prediction)]
    assert kinds == ["run", "evaluation", "prediction"]


@pytest.mark.parametrize(
    ("git", "description"),
    [
        (None, None),
        ({"commit": "abc", "dirty": False}, "abc"),
        ({"commit": "abc", "dirty": True}, "abc with changes"),
        ({"commit": "abc", "dirty": None}, "abc, perhaps with changes"),
    ],
)
def test_commit_says_whether_the_code_was_changed(
    git: dict[str, Any] | None, description: str | None
) -> None:
    provenance = Provenance(git=git)
    assert provenance.describe_commit() == description
    assert provenance.describe_environment()["commit"] == description


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"status": "bogus"}, "`status`"),
        ({"pid": "abc", "host": "here"}, "`pid`"),
        ({"pid": 0, "host": "here"}, "`pid`"),
        ({"values": 3}, "`values`"),
        ({"versions": {"torch": 2}}, "`versions.torch`"),
        ({"best": {"metric": "val/loss", "value": "low"}}, "`best"),
        ({"engine": "nope"}, "`engine`"),
        ({"ranks": "many"}, "`ranks`"),
        ({"init": {"path": 3}}, "`init"),
        ({"started": "yesterday"}, "is not a time"),
    ],
)
def test_wrong_entries_are_not_written(entries: dict[str, Any], message: str) -> None:
    right = {"name": "x", "status": "running", "started": "2024-01-01T00:00:00.000Z"}
    RunMetadata.read(right)
    with pytest.raises(ValueError, match=message):
        RunMetadata.read({**right, **entries})


def test_wrong_metadata_are_not_written(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    metadata = folder.read_metadata()
    with pytest.raises(ValueError, match="`status`"):
        folder.run_file.replace(replace(metadata, status="bogus"))
    assert folder.read_metadata() == metadata


def test_entries_are_checked_as_they_are_written(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    values = TrialSettings(values={"width": np.int64(3)})
    stopped = [ValueError("it is enough")]
    changed = replace(folder.read_metadata(), trial_settings=values, stopped=stopped)
    folder.run_file.replace(changed)
    error = os.fsdecode(b"cannot read plot-\xff.png")
    folder.run_file.end("failed", error=error)
    metadata = folder.read_metadata()
    assert metadata.trial_settings.values == {"width": 3}
    assert metadata.error == "cannot read plot-\\udcff.png"
