import os
import shlex
import socket
import time
import uuid
from dataclasses import fields, replace
from pathlib import Path

import pytest

from hooks.position import Position, Stage
from orchestrator.disk.best import Best
from orchestrator.disk.lease import Lease
from orchestrator.disk.listing import list_metadata
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.timestamps import format_now, seconds_at
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.yaml.source import ExperimentSource
from tests.orchestrator.runs.written import change, new_run


def make(storage: str | Path, name: str = "digits", **metadata: object) -> RunFolder:
    return new_run(storage, name, "name: digits\n", **metadata)


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_created_run_can_be_opened(tmp_path: Path, kind: str) -> None:
    storage = str(tmp_path / "runs") if kind == "folder" else f"memory://test-{uuid.uuid4().hex}"
    folder = make(storage, seed=3)
    again = RunFolder.open(str(folder))
    assert again.name == "digits"
    assert str(again) == str(folder) == f"{storage}/digits"
    assert again.storage.read("experiment.yaml") == b"name: digits\n"
    metadata = again.read_metadata()
    assert (metadata.name, metadata.status, metadata.seed) == ("digits", "running", 3)
    assert metadata.driver is not None
    assert (metadata.driver.pid, metadata.driver.host) == (os.getpid(), socket.gethostname())
    assert metadata.started <= format_now()
    folder.storage.delete("")


@pytest.mark.parametrize("text", ["a: !!binary x", "a: 1\na: 2", "a: [", "[" * 500, ""])
def test_damaged_experiment_is_an_error(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path)
    folder.storage.write("experiment.yaml", text)
    with pytest.raises(DamagedFile, match=r"experiment\.yaml is damaged: [^\n]+\Z"):
        folder.read_experiment()


def test_times_have_fractions_of_a_second() -> None:
    before = time.time()
    moment = seconds_at(format_now())
    assert before - 0.001 <= moment <= time.time()


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_resume_keeps_the_time_that_the_run_took_until_its_end_or_its_last_report(
    tmp_path: Path, status: str
) -> None:
    folder = make(tmp_path, started="2026-01-01T00:00:00Z", earlier_s=100.0)
    folder.append_report({"attempt": 0, "iteration": 1, "time": "2026-01-01T00:00:20Z"})
    if status == "interrupted":
        change(folder, status=status, ended="2026-01-01T00:00:25Z", stopped=["interrupted"])
    folder.run_file.resume(replace(folder.read_metadata(), tags=["paper"]))
    metadata = folder.read_metadata()
    assert metadata.earlier_s == (125.0 if status == "interrupted" else 120.0)
    assert (metadata.status, metadata.stopped, metadata.tags) == ("running", [], ["paper"])
    assert metadata.ended is None
    assert len(metadata.resumed) == 1


@pytest.mark.parametrize("status", ["finished", "stopped", "interrupted"])
def test_nothing_of_an_earlier_failure_outlasts_the_next_start_or_end(
    tmp_path: Path, status: str
) -> None:
    def read_outcome() -> tuple[object, ...]:
        metadata = folder.read_metadata()
        flags = metadata.is_user_error, metadata.metric_missing
        return metadata.status, metadata.error, *flags

    folder = make(tmp_path)
    folder.run_file.end("failed", error="no such metric", is_user_error=True, metric_missing=True)
    assert read_outcome() == ("failed", "no such metric", True, True)
    folder.run_file.end(status)
    assert read_outcome() == (status, None, False, False)

    folder.run_file.end("failed", error="no such metric", is_user_error=True, metric_missing=True)
    folder.run_file.resume(folder.read_metadata())
    assert read_outcome() == ("running", None, False, False)


def test_nothing_of_an_earlier_end_is_left_in_a_resumed_run(tmp_path: Path) -> None:
    folder = make(tmp_path)
    begun = folder.read_metadata()
    best = Best("val/accuracy", "max", 0.5, epoch=1, step=2, iteration=2)
    ends: dict[str, object] = {
        "status": "failed",
        "ended": format_now(),
        "attempts": 2,
        "ranks": 4,
        "hosts": ("a", "b"),
        "reports": 3,
        "best": best,
        "diverged": "loss is NaN",
        "stopped": ("requested",),
        "error": "out of memory",
        "is_user_error": True,
        "metric_missing": True,
    }
    names = [field.name for field in fields(RunMetadata)]
    assert {*ends} == {"status", *names[names.index("ended") :]}, "each entry of an end"

    folder.run_file.replace(replace(begun, **ends))  # type: ignore[arg-type]
    folder.run_file.resume(folder.read_metadata())
    resumed = folder.read_metadata()
    kept = {"resumed": resumed.resumed, "earlier_s": resumed.earlier_s}
    assert resumed == replace(begun, **kept)  # type: ignore[arg-type]


def test_taken_name_is_refused_with_the_resume_command(tmp_path: Path) -> None:
    folder = make(tmp_path / "it's mine", seed=1)
    with pytest.raises(UsageError, match=r"exists.*\n.*--name") as refused:
        make(tmp_path / "it's mine", seed=2)
    assert shlex.split(str(refused.value).splitlines()[0].partition("To resume it: ")[2]) == [
        "hookyard",
        "resume",
        str(folder),
    ]
    assert folder.read_metadata().seed == 1


def test_folder_that_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        make(tmp_path)
    assert os.listdir(tmp_path / "digits") == ["notes.txt"]


def test_only_a_run_can_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing is not a run: it does not exist"):
        RunFolder.open(tmp_path / "nothing")
    folder = make(tmp_path)
    folder.append_report({"attempt": 0})
    folder.storage.delete("run.json")
    with pytest.raises(DamagedFile, match=r"run.json is missing. Restore it from a backup"):
        RunFolder.open(str(folder))


# Begun and not there


def killed_as_it_began(folder: RunFolder, source: ExperimentSource) -> None:
    with Lease(folder.storage):
        folder.write_experiment("name: digits\n", source)
    (Path(str(folder)) / ".run.json.4194305.0123abcd").write_text("{")


def test_name_is_free_after_a_kill_during_creation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "digits")
    killed_as_it_began(folder, ExperimentSource({"name": "digits"}))
    with pytest.raises(
        UsageError,
        match=r"has no run.json, because the process was killed while creating it. A new run can reuse the name",
    ):
        RunFolder.open(str(folder))
    with Lease(folder.storage):
        make(tmp_path, seed=7)
    assert RunFolder.open(str(folder)).read_metadata().seed == 7
    assert sorted(os.listdir(tmp_path / "digits")) == [
        ".driver",
        "experiment.yaml",
        "run.json",
        "source.json",
    ]


def test_folder_with_a_user_s_experiment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/experiment.yaml").write_text("mine")
    with pytest.raises(UsageError, match=r"exists and is not a run: it contains experiment.yaml"):
        make(tmp_path)


# Attempts


def test_attempts_record_their_number_and_start(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.read_attempts() == []
    first = folder.begin_attempt(world_size=2)
    position = Position(epoch=1, step=5, iteration=10, stage=Stage.TRAINED)
    second = folder.begin_attempt("epoch-0001", position)
    assert (first.number, second.number) == (0, 1)
    one, two = folder.read_attempts()
    assert (one.number, one.checkpoint, one.position, one.world_size) == (0, None, Position(), 2)
    assert (two.number, two.checkpoint, two.world_size, two.position) == (
        1,
        "epoch-0001",
        1,
        position,
    )


def test_attempt_without_a_file_does_not_count(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.begin_attempt()
    (tmp_path / "digits/stats/attempt=1").mkdir()
    assert [attempt.number for attempt in folder.read_attempts()] == [0]
    assert folder.begin_attempt().number == 1


# Metrics


def test_reports_are_lines(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.read_reports() == []
    lines = [{"step": 1, "val/loss": 0.1 + 0.2}, {"step": 2, "val/loss": float("inf")}]
    for line in lines:
        folder.append_report(line)
    assert folder.read_reports() == lines


def test_truncated_report_does_not_affect_later_ones(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.append_report({"step": 1})
    folder.append_report({"step": 2})
    file = tmp_path / "digits/metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-4])
    assert folder.read_reports() == [{"step": 1}]
    folder.begin_attempt()
    folder.append_report({"step": 3})
    assert folder.read_reports() == [{"step": 1}, {"step": 3}]


# Places


def test_runs_are_listed_oldest_first(tmp_path: Path) -> None:
    change(make(tmp_path, "b"), started="2026-01-01T00:00:00Z")
    change(make(tmp_path, "a"), started="2026-01-02T00:00:00Z")
    (tmp_path / "other").mkdir()
    (tmp_path / "file.txt").write_text("")
    assert [folder.name for folder, _ in list_metadata(tmp_path)] == ["b", "a"]
    assert list_metadata(tmp_path / "nowhere") == []
