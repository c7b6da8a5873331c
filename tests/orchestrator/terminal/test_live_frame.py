from __future__ import annotations

from pathlib import Path

from orchestrator.terminal.live_frame import LiveFrame
from tests.orchestrator.runs.written import written_run
from tests.orchestrator.terminal.test_run_frame import drawn
from tests.orchestrator.terminal.test_sweep_status import trial, written_sweep


def test_the_frame_of_a_sweep_is_that_of_its_files(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path)
    trial(sweep, 0, 0.5)
    lines = drawn(LiveFrame(sweep)(24))
    assert lines[1].startswith("0 of 8 trials over")
    assert lines[-1].startswith("trial-0000")


def test_the_frame_of_a_run_too(tmp_path: Path) -> None:
    lines = drawn(LiveFrame(written_run(tmp_path))(24))
    assert lines[0] == f"{tmp_path}/points  running"


def test_what_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    frame = LiveFrame(written_sweep(tmp_path))
    (tmp_path / "sweep/run.json").write_text('{"half')
    assert frame(24) == ""
