"""How a training ends when what it reports cannot be written."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest

from hooks import Hook, State
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import attempt_recorder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.world import World
from tests.tasks import described


@dataclass
class FailsAtEnd(Hook):
    """Notes its last events, and fails at the end."""

    events: ClassVar[list[str]] = []

    def on_end(self, state: State) -> None:
        FailsAtEnd.events.append("on_end")
        raise RuntimeError("the tracker is gone")

    def on_exception(self, state: State, error: BaseException) -> None:
        FailsAtEnd.events.append(f"on_exception: {error}")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt("disk full")])
def test_training_whose_report_cannot_be_written_fails_with_that_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    FailsAtEnd.events.clear()
    experiment = described(hooks={"fails": {"type": f"{__name__}:FailsAtEnd"}})
    folder = create_run(tmp_path, "points", to_yaml(experiment))
    monkeypatch.setattr(RunFolder, "append_report", Mock(side_effect=error))
    with pytest.raises(type(error), match="disk full"):
        list(Session(Assignment(experiment.source, str(folder)), World()).reports())
    assert FailsAtEnd.events == ["on_exception: disk full"]


def test_an_error_of_the_last_files_does_not_replace_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = described()
    folder = create_run(tmp_path, "points", to_yaml(experiment))
    monkeypatch.setattr(RunFolder, "append_report", Mock(side_effect=OSError("disk full")))
    monkeypatch.setattr(attempt_recorder, "write_info", Mock(side_effect=TypeError("no JSON")))
    with pytest.raises(OSError, match="disk full"):
        list(Session(Assignment(experiment.source, str(folder)), World()).reports())
    assert "rank 0 could not write its last files: no JSON" in caplog.messages


@dataclass
class ReadsEndOf(Hook):
    """Reads at the beginning of each epoch where the attempt of another run has ended."""

    folder: str

    observes: ClassVar[bool] = True
    ends: ClassVar[list[int | None]] = []

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            ReadsEndOf.ends.append(RunFolder(self.folder).read_attempts()[0].until)


def test_the_end_of_a_run_is_recorded_before_the_others_train_on(tmp_path: Path) -> None:
    """Otherwise it would get their rows if the process were killed meanwhile."""
    follower = RunFolder(tmp_path, "follower")
    reader = {"type": f"{__name__}:ReadsEndOf", "folder": str(follower)}
    experiments = {
        "leader": described(epochs=2, hooks={"ema": {"decay": 0.5}, "reader": reader}),
        "follower": described(epochs=2, hooks={"ema": {"decay": 0.9}}),
    }
    leading, following = (
        Assignment(experiment.source, str(create_run(tmp_path, name, to_yaml(experiment))))
        for name, experiment in experiments.items()
    )
    session = Session(replace(leading, followers=(following,)), World())
    ReadsEndOf.ends.clear()

    reports = session.reports()
    first, second = next(reports), next(reports)
    assert (first.run_index, second.run_index) == (0, 1)
    session.end_run(1)
    list(reports)
    assert ReadsEndOf.ends == [None, second.metrics["iteration"]]
