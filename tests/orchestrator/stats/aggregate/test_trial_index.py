"""A sweep's table of trials with its index, against the table made from the folders alone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from orchestrator.errors import StorageError
from orchestrator.records.new_run import create_run
from orchestrator.records.run_folder import INDEX, RunFolder
from orchestrator.records.sweep_folder import trial_name
from orchestrator.stats.aggregate.trial_index import TrialIndex
from orchestrator.storage import Storage
from orchestrator.sweeps.results.previous_trials import previous_trials
from orchestrator.sweeps.results.result import Sweep

OBJECTIVES = [("val/loss", "min"), ("val/accuracy", "max")]
STATUSES = ("finished", "stopped", "failed", "interrupted")


class KeptFiles(LocalFileSystem):
    """Files of this machine as those of a store: they have times, and a location that is no folder."""

    protocol = "kept"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(str(path).removeprefix("kept://"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    sweep = create_run(
        root, "sweep", "", sweep={"metric": "val/loss", "mode": "min", "objectives": OBJECTIVES, "trials": 20}
    )
    for number in range(20):
        trial(sweep, number, STATUSES[number % 4])
    return root / "sweep"


@pytest.fixture
def disk(made: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(made, tmp_path / "sweep")
    return RunFolder(tmp_path, "sweep")


@pytest.fixture(params=["disk", "store"])
def sweep(request: pytest.FixtureRequest, disk: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A sweep of which each fourth trial ended in the same way: on a disk, and in a store."""
    if request.param == "disk":
        return disk
    fsspec.register_implementation("kept", KeptFiles, clobber=True)
    monkeypatch.setitem(fsspec.config.conf, "kept", {"auto_mkdir": True})
    return RunFolder(f"kept://{Path(disk.storage.root).parent}", "sweep")


def trial(sweep: RunFolder, number: int, status: str, accuracy: float | None = 0.5) -> RunFolder:
    folder = RunFolder(sweep.storage / "trials", trial_name(number))
    folder.begin(
        "hooks: {}\n",
        trial=folder.name,
        values={"optimizer.lr": number / 10, "hooks.ema": {"decay": 0.5}, "seed": None},
    )
    folder.begin_attempt()
    for step in range(1, 4):
        metrics = {
            "val/loss": (step - 2) ** 2 + number / 7,
            "train/x": float("nan"),
            **({} if accuracy is None else {"val/accuracy": accuracy * step}),
        }
        folder.append_metrics(
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
        folder.end(
            status, stopped=["because"] if status == "stopped" else [], error="broken" if status == "failed" else None
        )
    return folder


def told(sweep: RunFolder) -> str:
    """All that is known of the trials: the table, a resume and the frame are made of it."""
    return "\n".join(map(str, TrialIndex(sweep, OBJECTIVES).records().values())).replace("kept://", "")


def agree(sweep: RunFolder) -> None:
    """That the index says what the folders say."""
    with_index = told(sweep)
    bare = Path(sweep.storage.root).with_name("bare")
    shutil.copytree(sweep.storage.root, bare, ignore=shutil.ignore_patterns(INDEX))
    assert with_index == told(RunFolder(sweep.storage.parent, "bare")).replace("/bare/", "/sweep/")
    shutil.rmtree(bare)


def lines(sweep: RunFolder) -> int:
    there = sweep.storage / INDEX
    return sum(there.read(name).count(b"\n") - 1 for name in there.names() if name.endswith(".jsonl"))


class Settings:
    """As much of a sweep's settings as is asked for."""

    objectives = OBJECTIVES


def test_the_index_says_what_the_folders_say_and_opens_none(sweep: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(sweep)  # which writes it
    assert lines(sweep) == 20
    opened: list[str] = []
    metadata = RunFolder.metadata
    monkeypatch.setattr(RunFolder, "metadata", lambda folder: opened.append(folder.name) or metadata(folder))
    table = Sweep(sweep).trials
    assert {*opened} == {"sweep"}
    assert table["status"].value_counts().to_dict() == dict.fromkeys(STATUSES, 5)
    assert table.loc["trial-0007", "val/loss"] == 1.0
    first = previous_trials(sweep, Settings())[6]
    assert (first.is_over, first.has_failed, first.values["optimizer.lr"], first.last_reports) == (
        True,
        True,
        0.6,
        ("2026-01-01T00:00:03Z",),
    )
    assert first.reports == tuple(
        {"val/loss": (step - 2) ** 2 + 6 / 7, "val/accuracy": step / 2, "samples": 8 * step} for step in (1, 2, 3)
    )
    assert TrialIndex(sweep, OBJECTIVES).standing().keys() == {*table.index}
    assert not TrialIndex(sweep, OBJECTIVES[:1]).standing()  # of other metrics


def damage(sweep: RunFolder) -> None:
    for file in Path(sweep.storage.root, INDEX).glob("*.jsonl"):
        data = bytearray(file.read_bytes())
        for place in range(100, len(data), 997):
            data[place] ^= 4
        file.write_bytes(data)


def remove(sweep: RunFolder) -> None:
    shutil.rmtree(Path(sweep.storage.root, "trials", "trial-0003"))


def make_anew(sweep: RunFolder) -> None:
    remove(sweep)
    TrialIndex(sweep, OBJECTIVES).join()  # as a resume does
    trial(sweep, 3, "failed", 0.9)


def take_up(sweep: RunFolder, ends: str | None = "failed") -> None:
    folder = RunFolder(sweep.storage / "trials", "trial-0002")
    folder.update(status="running", error=None, values={"optimizer.lr": 7.0})
    folder.begin_attempt()
    folder.append_metrics(
        {
            "attempt": 1,
            "time": "2026-01-01T01:00:00Z",
            "epoch": 5,
            "step": 5,
            "iteration": 5,
            "val/loss": -3.0,
            "val/accuracy": 0.1,
        }
    )
    if ends:
        folder.end(ends)


def cut(sweep: RunFolder) -> None:
    for file in Path(sweep.storage.root, INDEX).glob("*.jsonl"):
        file.write_bytes(file.read_bytes()[:-700])


@pytest.mark.parametrize(
    "happens",
    [
        damage,
        remove,
        make_anew,
        take_up,
        lambda sweep: take_up(sweep, None),
        cut,
        lambda sweep: trial(sweep, 41, "finished", None),
    ],
)
def test_whatever_happens_the_folders_are_the_truth(sweep: RunFolder, happens: Callable[[RunFolder], Any]) -> None:
    TrialIndex(sweep, OBJECTIVES).join()
    happens(sweep)
    agree(sweep)
    TrialIndex(sweep, OBJECTIVES).join()
    agree(sweep)
    assert len([*Path(sweep.storage.root, INDEX).glob("*.jsonl")]) == 1


def test_a_file_that_is_changed_by_hand_shows_on_a_disk(disk: RunFolder) -> None:
    TrialIndex(disk, OBJECTIVES).join()
    for number, file in enumerate(("run.json", "metrics.jsonl")):
        path = Path(disk.storage.root, "trials", trial_name(number), file)
        path.write_text(path.read_text().replace("0", "{", 1))
    Path(disk.storage.root, "trials", trial_name(9), "stats.parquet").write_bytes(b"no table")
    agree(disk)
    status = Sweep(disk).trials["status"]
    assert [*status[status == "damaged"].index] == ["trial-0009"]


@pytest.mark.parametrize("seed", range(2))
def test_a_driver_that_dies_at_any_file_leaves_an_index_that_tells_no_lies(
    sweep: RunFolder, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials end, are taken up again, removed and joined in any order, and at a random operation the process is no
    more."""
    chance = random.Random(seed)
    for name in ("write", "delete"):
        whole = getattr(Storage, name)

        def dying(storage: Storage, *arguments: Any, whole: Any = whole) -> Any:
            if INDEX in storage.root and chance.random() < 0.2:
                raise KeyboardInterrupt
            return whole(storage, *arguments)

        monkeypatch.setattr(Storage, name, dying)
    for attempt in range(4):
        index = TrialIndex(sweep, OBJECTIVES)
        try:
            for number in chance.sample(range(20 + attempt), 17):
                step = chance.choice((take_up, TrialIndex.keep, TrialIndex.keep, TrialIndex.keep))
                _ = take_up(sweep, chance.choice(STATUSES)) if step is take_up else index.keep(trial_name(number))
            index.join()
        except KeyboardInterrupt:
            pass
        with monkeypatch.context() as alive:
            alive.setattr(chance, "random", lambda: 1.0)
            agree(sweep)


def test_an_index_that_cannot_be_written_ends_nothing(disk: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(storage: Storage, name: str, data: Any) -> None:
        raise StorageError("No space left on device")

    monkeypatch.setattr(Storage, "write", full)
    index = TrialIndex(disk, OBJECTIVES)
    for number in range(20):
        index.keep(trial_name(number))
    index.join()
    assert len(Sweep(disk).trials) == 20
    assert not Path(disk.storage.root, INDEX).exists()
