"""The index of a sweep's trials, against what their folders alone say."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.attempts import Attempt, LeadingAttempt, rank_folder, write_attempt
from orchestrator.disk.metadata import LaunchMetadata
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from orchestrator.sweeps.earlier_attempts import load_previous_trials
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables import trial_index
from orchestrator.tables.trial_index import INDEX, TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from tests.orchestrator.runs.written import change, new_run

OBJECTIVES = [("val/loss", "min"), ("val/accuracy", "max")]
STATUSES = ("finished", "stopped", "failed", "interrupted")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    sweep = new_run(root, "sweep", "", sweep={"objectives": OBJECTIVES, "trials": 8})
    for number in range(8):
        trial(sweep, number, STATUSES[number % 4])
    return root / "sweep"


@pytest.fixture
def sweep(made: Path, tmp_path: Path) -> RunFolder:
    """A sweep in which each fourth trial ended in the same way."""
    shutil.copytree(made, tmp_path / "sweep")
    return RunFolder(tmp_path, "sweep")


def trial(sweep: RunFolder, number: int, status: str, accuracy: float | None = 0.5) -> RunFolder:
    name = trial_name(number)
    folder = new_run(
        sweep.storage / "trials",
        name,
        "hooks: {}\n",
        trial=name,
        values={"optimizer.lr": number / 10, "hooks.ema": {"decay": 0.5}, "seed": None},
    )
    folder.begin_attempt()
    for step in range(1, 4):
        metrics = {
            "val/loss": (step - 2) ** 2 + number / 7,
            "train/x": float("nan"),
            **({} if accuracy is None else {"val/accuracy": accuracy * step}),
        }
        folder.append_report(
            {
                "attempt": 0,
                "time": f"2026-01-01T00:00:{step:02d}Z",
                "epoch": step - 1,
                "step": step,
                "iteration": step,
                "samples": 8 * step,
                **metrics,
            }
        )
    if status != "running":
        folder.run_file.end(
            status,
            stopped=["because"] if status == "stopped" else [],
            error="broken" if status == "failed" else None,
        )
    return folder


def describe(sweep: RunFolder) -> str:
    """Everything that is known of the trials: their table, a resume and the display are made of
    it."""
    return "\n".join(map(str, TrialIndex(sweep, OBJECTIVES).read().values()))


def check_against_folders(sweep: RunFolder) -> None:
    bare = Path(sweep.storage.root).with_name("bare")
    shutil.copytree(sweep.storage.root, bare, ignore=shutil.ignore_patterns(INDEX))
    assert describe(sweep) == describe(RunFolder(sweep.storage.parent, "bare")).replace(
        "/bare/", "/sweep/"
    )
    shutil.rmtree(bare)


def write_index(sweep: RunFolder, *removed: str) -> None:
    """Write the index as a resume and the end of a sweep do."""
    index = TrialIndex(sweep, OBJECTIVES)
    index.write(record for name, record in index.read().items() if name not in removed)


class Settings:
    objectives = OBJECTIVES


def test_index_opens_no_folder_of_ended_trials(
    sweep: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_index(sweep)
    check_against_folders(sweep)
    opened: list[str] = []
    metadata = RunFolder.read_metadata
    monkeypatch.setattr(
        RunFolder, "read_metadata", lambda folder: opened.append(folder.name) or metadata(folder)
    )
    table = Sweep(sweep).trials
    interrupted = {*table.index[table["status"] == "interrupted"]}
    assert {*opened} == {"sweep", *interrupted}
    assert table["status"].value_counts().to_dict() == dict.fromkeys(STATUSES, 2)
    assert table.loc["trial-0007", "val/loss"] == 1.0
    first = load_previous_trials(sweep, Settings(), rerun_failed=False)[6]
    assert (first.has_ended, first.status, first.values["optimizer.lr"]) == (True, "failed", 0.6)
    assert first.reported == ["2026-01-01T00:00:03Z"]
    assert first.compared_reports == tuple(
        {"val/loss": (step - 2) ** 2 + 6 / 7, "val/accuracy": step / 2, "samples": 8 * step}
        for step in (1, 2, 3)
    )
    assert TrialIndex(sweep, OBJECTIVES).read_stored().keys() == {*table.index} - interrupted
    assert not TrialIndex(sweep, OBJECTIVES[:1]).read_stored(), "an index of other metrics was used"


def damage(sweep: RunFolder) -> None:
    file = Path(sweep.storage.root, INDEX)
    data = bytearray(file.read_bytes())
    for place in range(300, len(data), 997):
        data[place] ^= 4
    file.write_bytes(data)


def cut(sweep: RunFolder) -> None:
    file = Path(sweep.storage.root, INDEX)
    file.write_bytes(file.read_bytes()[:-700])


def replace_lines(sweep: RunFolder) -> None:
    file = Path(sweep.storage.root, INDEX)
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([header, "[]", '{"name": "trial-0001"}', "7", *lines[4:]]))


def remove_trial(sweep: RunFolder) -> None:
    shutil.rmtree(Path(sweep.storage.root, "trials", "trial-0003"))


def restart_trial(sweep: RunFolder, status: str | None = None) -> None:
    write_index(sweep, "trial-0002")
    folder = RunFolder(sweep.storage / "trials", "trial-0002")
    change(folder, status="running", error=None, values={"optimizer.lr": 7.0})
    folder.begin_attempt()
    folder.append_report(
        {"attempt": 1, "epoch": 5, "step": 5, "iteration": 5, "val/loss": -3.0, "val/accuracy": 0.1}
    )
    if status:
        folder.run_file.end(status)


@pytest.mark.parametrize(
    "change",
    [
        damage,
        cut,
        replace_lines,
        remove_trial,
        restart_trial,
        lambda sweep: restart_trial(sweep, "failed"),
        lambda sweep: trial(sweep, 41, "finished", None),
        lambda sweep: Path(sweep.storage.root, INDEX).unlink(),
    ],
    ids=[
        "damage",
        "cut",
        "other lines",
        "removed",
        "restarted",
        "failed again",
        "new trial",
        "no index",
    ],
)
def test_folders_tell_what_the_index_lacks(
    sweep: RunFolder, change: Callable[[RunFolder], Any]
) -> None:
    write_index(sweep)
    change(sweep)
    check_against_folders(sweep)
    write_index(sweep)
    check_against_folders(sweep)


def test_killed_driver_leaves_each_trial_once(
    sweep: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers resume, run some trials again and end them, and are killed at a random write of the
    index."""
    monkeypatch.setattr(trial_index, "_BATCH", 3)
    chance = random.Random(0)
    write = Storage.write

    def write_or_die(storage: Storage, name: str, data: Any) -> None:
        if name == INDEX and chance.random() < 0.3:
            raise KeyboardInterrupt
        write(storage, name, data)

    for attempt in range(3):
        rerun = chance.sample(range(8 + attempt), 7)
        with monkeypatch.context() as dying, suppress(KeyboardInterrupt):
            dying.setattr(Storage, "write", write_or_die)
            index = TrialIndex(sweep, OBJECTIVES)
            index.write(
                record for name, record in index.read().items() if int(name[-4:]) not in rerun
            )
            for number in rerun:
                folder = RunFolder(sweep.storage / "trials", trial_name(number))
                if not folder.exists():
                    trial(sweep, number, "finished")
                change(
                    folder, status=chance.choice(STATUSES), values={"optimizer.lr": chance.random()}
                )
                index.keep(trial_name(number))
            index.write(index.read().values())
        check_against_folders(sweep)


def test_usage_of_a_shared_training_is_the_same_before_and_after_compaction(tmp_path: Path) -> None:
    """The leader's run is over after the second of three iterations; the follower only validates
    its own model."""
    leader = Attempt(0, until=2)
    follower = Attempt(0, leader=LeadingAttempt("trial-0000", 0))
    folders = [RunFolder(tmp_path / "trials", trial_name(number)) for number in range(2)]
    for folder, attempt, phase, times in (
        (folders[0], leader, "train", (1, 2, 4)),
        (folders[1], follower, "val", (8,)),
    ):
        folder.begin("hooks: {}\n", LaunchMetadata(trial=folder.name))
        write_attempt(folder.storage, attempt)
        recorder = Recorder(
            folder.storage, rank_folder(0, 0), {"rank": 0, "node": "here", "attempt": 0}
        )
        for iteration, step_s in enumerate(times, start=1):
            recorder.append(
                {
                    "phase": phase,
                    "epoch": 0,
                    "iteration": iteration,
                    "step": 1,
                    "step_s": float(step_s),
                }
            )
        recorder.close()
        folder.run_file.end("finished")
    for _ in range(2):
        records = TrialIndex(RunFolder(tmp_path), OBJECTIVES).read().values()
        usage = [record.usage for record in records if isinstance(record, TrialRecord)]
        assert usage == [{"ranks": 1, "step_s": 1.5, "train_s": 3.0}, {"ranks": 1}]
        compact(folders[0].storage, [leader])
        compact(folders[1].storage, [follower])


def test_index_that_cannot_be_written_fails_no_trial(
    sweep: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(storage: Storage, name: str, data: Any) -> None:
        raise StorageError("No space left on device")

    monkeypatch.setattr(Storage, "write", fail)
    monkeypatch.setattr(trial_index, "_BATCH", 3)
    index = TrialIndex(sweep, OBJECTIVES)
    for number in range(8):
        index.keep(trial_name(number))
    assert len(Sweep(sweep).trials) == 8
    assert not Path(sweep.storage.root, INDEX).exists()
