"""Resumed sweeps in this process, whose driver was killed, failed or interrupted."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from orchestrator import UsageError, load_experiment, open_sweep, resume, resume_sweep, sweep
from orchestrator.disk.rows.file_format import make_stream
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.disk.timestamps import seconds_at
from tests.driver import Driver
from tests.orchestrator.runs.written import change
from tests.ray.conftest import EXPERIMENT, HOOKS, TASK

SWEEP = """
base: points.yaml
name: kept
workers: {count: 1}
hooks:
  accident: {type: "shaky:Accident", rank: 0, step: 13, once: happened}
  checkpoint: {every: 4 steps, keep: 2}
sweep:
  metric: val/loss
  mode: min
  search: grid
  space: {optimizer.lr: {grid: [0.1, 0.05, 0.02]}}
"""


BREAKS = '''
from dataclasses import dataclass
from pathlib import Path

from hooks import Hook


@dataclass
class Breaks(Hook):
    """Fails until it is repaired."""

    value: float = 0.0

    def on_step(self, state):
        if self.value > 1 and not Path("repaired").exists():
            raise ValueError("broken")
'''


def write_files(folder: Path) -> None:
    for name, text in {
        "circle.py": TASK,
        "shaky.py": HOOKS,
        "points.yaml": EXPERIMENT,
        "kept.yaml": SWEEP,
    }.items():
        (folder / name).write_text(text)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep of three trials."""
    folder = tmp_path_factory.mktemp("finished")
    write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sweep(load_experiment("kept.yaml", ["hooks.accident=null", "epochs=1"]), "runs", local=True)
    return folder / "runs/kept"


def losses(done: Any) -> list[list[float]]:
    return [[report["val/loss"] for report in run.reports()] for run in done.runs]


def test_sweep_resumes_after_its_driver_was_killed(outside: Path) -> None:
    (outside / "shaky.py").write_text(
        HOOKS.replace('once: str = ""\n', 'once: str = ""\n    after: int = 0\n').replace(
            "or Path(self.once).exists():",
            "or Path(self.once).exists() or len(list(state.artifacts.parent.iterdir())) <= self.after:",
        )
    )
    code, stderr = Driver(
        "sweep", "kept.yaml", "--local", "hooks.accident.after=1", "epochs=2"
    ).wait()
    assert code == -signal.SIGKILL, stderr
    left = open_sweep("runs/kept")
    assert left.status == "lost"
    assert [run.status for run in left.runs] == ["finished", "lost"]
    first = (outside / "runs/kept/trials/trial-0000/run.json").read_text()

    resumed = resume_sweep("runs/kept")
    assert [run.status for run in resumed.runs] == ["finished"] * 3
    assert (outside / "runs/kept/trials/trial-0000/run.json").read_text() == first
    assert [[a.checkpoint for a in run.folder.read_attempts()] for run in resumed.runs] == [
        [None],
        [None, "step-00000012"],
        [None],
    ]
    uninterrupted = sweep(
        load_experiment("kept.yaml", ["hooks.accident=null", "epochs=2"]),
        "runs",
        "uninterrupted",
        local=True,
    )
    # Threads of another process sum in another order; other data or weights would differ in the
    # second digit.
    assert np.array(losses(resumed)) == pytest.approx(np.array(losses(uninterrupted)), rel=1e-5)
    assert not resumed.stats.duplicated(["trial", "rank", "phase", "epoch", "iteration"]).any()
    assert len(resumed.stats) == len(uninterrupted.stats)
    with pytest.raises(UsageError, match=r"every trial of .* has ended"):
        resume_sweep("runs/kept")


def interrupted_after_one(finished: Path, root: Path) -> Path:
    """Return the folder of a sweep with one finished trial."""
    folder = shutil.copytree(finished, root / "runs/kept")
    for trial in sorted((folder / "trials").iterdir())[1:]:
        shutil.rmtree(trial)
    change(RunFolder(folder), status="interrupted")
    return folder


def undo_compaction(trial: Path) -> None:
    """Write a trial's rows as its rank did."""
    rows = pq.read_table(trial / "stats.parquet").replace_schema_metadata(None)
    batches = b"".join(bytes(batch.serialize()) for batch in rows.to_batches())
    (trial / "stats/attempt=0/rank=0/rows-0000.arrow").write_bytes(
        make_stream(rows.schema, batches)
    )
    (trial / "stats.parquet").unlink()


def test_resume_only_ends_a_sweep_whose_driver_died_after_the_last_trial(
    finished: Path, outside: Path
) -> None:
    done = open_sweep(shutil.copytree(finished, outside / "runs/kept"))
    folder = RunFolder(done.path)
    trials = [run.folder.read_metadata() for run in done.runs]
    rows = len(done.stats)
    undo_compaction(outside / "runs/kept/trials/trial-0002")
    folder.storage.write(".tune/notes", "left behind")
    change(folder, status="running", boot="an earlier one", ended=None)
    begun = seconds_at(folder.read_metadata().started)
    last_report = max(seconds_at(run.folder.read_reports()[-1]["time"]) for run in done.runs)
    ended = resume_sweep(done.path)
    assert folder.read_metadata().earlier_s == last_report - begun, "without the pause"
    assert ended.status == "finished"
    assert folder.read_metadata().ended is not None
    assert [run.folder.read_metadata() for run in ended.runs] == trials
    assert len(ended.stats) == rows
    assert (outside / "runs/kept/trials/trial-0002/stats.parquet").exists()
    assert not (outside / "runs/kept/.tune").exists()
    with pytest.raises(UsageError, match=r"every trial of .* has ended"):
        resume_sweep(done.path)


def test_trial_with_an_incomplete_folder_begins(finished: Path, outside: Path) -> None:
    """The kill came between the trial's first file and its run.json."""
    folder = interrupted_after_one(finished, outside)
    begun = folder / "trials/trial-0001"
    begun.mkdir()
    (begun / "experiment.yaml").write_text("name: kept\n")
    (begun / ".run.json.4711").write_text('{"name": "tri')
    done = resume_sweep(folder)
    assert done.trials["status"].tolist() == ["finished"] * 3
    assert done.trials["config/optimizer.lr"].tolist() == [0.1, 0.05, 0.02]


def test_resume_reads_edits_of_the_sweep_but_not_of_repeats(finished: Path, outside: Path) -> None:
    file = interrupted_after_one(finished, outside) / "experiment.yaml"
    text = file.read_text()
    for edited in ("repeats: 3", "repeats: {seed: [0, 1]}"):
        file.write_text(text.replace("repeats: 1", edited))
        with pytest.raises(
            UsageError, match=r"experiment\.yaml must have a sweep section with the original"
        ):
            resume_sweep(file.parent)
    file.write_text(text.replace("- 0.05", "- 0.3"))
    done = resume_sweep(file.parent)
    assert done.trials["config/optimizer.lr"].tolist() == [0.1, 0.3, 0.02]
    assert [len(run.folder.read_attempts()) for run in done.runs] == [1, 1, 1]


def test_a_grid_can_grow_only_where_no_point_moves(finished: Path, outside: Path) -> None:
    file = shutil.copytree(finished, outside / "runs/kept") / "experiment.yaml"
    text = file.read_text()
    (first,) = [line for line in text.splitlines() if line.endswith("- 0.1")]
    (last,) = [line for line in text.splitlines() if line.endswith("- 0.02")]
    added = last.replace("0.02", "0.3")
    file.write_text(text.replace(first, f"{added}\n{first}"))
    with pytest.raises(UsageError, match=r"the edited sweep.space moves the point of trial-0000"):
        resume_sweep(file.parent)
    file.write_text(text.replace(last, f"{last}\n{added}"))
    done = resume_sweep(file.parent)
    assert done.trials["config/optimizer.lr"].tolist() == [0.1, 0.05, 0.02, 0.3]


def test_failed_trials_are_retried_only_with_failed(outside: Path) -> None:
    (outside / "breaks.py").write_text(BREAKS)
    overrides = ["hooks.accident=null", "epochs=1", "hooks.fails={type: 'breaks:Breaks'}"]
    space = "sweep.space={hooks.fails.value: {grid: [2.0, 0.0]}}"
    done = sweep(
        load_experiment("kept.yaml", [*overrides, space]), "runs", local=True, fail_fast=True
    )
    assert done.status == "failed"
    assert done.trials["status"].tolist() == ["failed"]
    after = resume_sweep(done.path)
    assert after.trials["status"].tolist() == ["failed", "finished"]
    with pytest.raises(
        UsageError, match=r"1 of 2 trials of .* failed, .* To retry: hookyard resume .* --failed"
    ):
        resume_sweep(done.path)
    assert after.count_failed_trials() == 1
    (outside / "repaired").touch()
    again = resume_sweep(done.path, failed=True)
    assert again.trials["status"].tolist() == ["finished", "finished"]
    assert again.count_failed_trials() == 0


def test_a_running_sweep_cannot_be_resumed(finished: Path, outside: Path) -> None:
    folder = interrupted_after_one(finished, outside)
    with make_lease(RunFolder(folder)):
        with pytest.raises(UsageError, match=f"is still running \\(process {os.getpid()}, since"):
            resume_sweep(folder)
        with pytest.raises(UsageError, match=f"{folder} is still running"):
            resume(folder / "trials/trial-0000")
    change(RunFolder(folder), status="running", boot="an earlier one")
    assert open_sweep(folder).status == "lost", "the machine has started again"
