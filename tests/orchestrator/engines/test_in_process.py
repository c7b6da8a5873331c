from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist

from orchestrator import Experiment, RunError, UsageError, open_run, resume, run
from orchestrator.config.load import load_experiment
from orchestrator.runs import launch
from orchestrator.runs.result import Run
from tests.ranks import on_ranks
from tests.tasks import Points, described

NOISY = {"train": 44, "val": 11, "batch_norm": True, "dropout": 0.3, "noisy": True}


class AskedAfter:
    """In place of Interrupts: asked once the loop has looked a number of times."""

    calls = 0

    def __init__(self, how_to_resume: str) -> None:
        self.looked = 0

    def __enter__(self) -> AskedAfter:
        return self

    def __exit__(self, *error: object) -> None: ...

    @property
    def asked(self) -> bool:
        self.looked += threading.current_thread() is threading.main_thread()
        return self.looked >= self.calls

    def fail(self, why: str) -> None: ...


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    def after(calls: int | None) -> None:
        with_calls = type("AskedAfter", (AskedAfter,), {"calls": calls or 10**9})
        monkeypatch.setattr(launch, "Interrupts", with_calls)

    return after


def stored(run: Run) -> list[Any]:
    """Everything in the last checkpoint, as it compares bit for bit."""
    path = Path(run.checkpoint("last"))
    files = sorted(path.glob("*.pt"))
    assert files

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "memory_stats"}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    # The memory that a process held is its own; and what the checkpoint hook remembers of stored names differs, as an
    # interruption stores one more.
    return [(file.name, plain(torch.load(file, weights_only=True))) for file in files if file.name != "hooks.pt"]


def each_row_once(stats: pd.DataFrame) -> bool:
    return not stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()


# A run to its end


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    storage = tmp_path_factory.mktemp("runs")
    hooks = {"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}}
    return run(described(task_args={"test": 5}, hooks=hooks), storage, local=True)


def test_it_leaves_the_folder_of_a_run(finished: Run) -> None:
    folder = Path(finished.path)
    assert finished.status == "finished"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".driver",
        "checkpoints",
        "experiment.yaml",
        "hooks.parquet",
        "log.txt",
        "metrics.jsonl",
        "run.json",
        "source.json",
        "stats",
        "stats.parquet",
    ]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()) == ["epoch-0001", "epoch-0002"]
    assert sorted(path.name for path in (folder / "checkpoints/epoch-0002").iterdir()) == [
        "ema.pt",
        "hooks.pt",
        "manifest.json",
        "model.pt",
        "optimizer.pt",
        "rank-0000.pt",
    ]
    assert [path.name for path in (folder / "stats/attempt=0").iterdir() if path.is_file()] == ["attempt.json"]


def test_the_table_of_stats(finished: Run) -> None:
    stats = finished.stats
    assert list(stats.columns[:6]) == ["rank", "node", "phase", "epoch", "iteration", "step"]
    assert each_row_once(stats)
    # 52, 23 and 5 samples in batches of 8
    assert stats.groupby(["phase", "epoch"], observed=True).size().to_dict() == {
        ("train", 0): 7,
        ("train", 1): 7,
        ("val", 0): 3,
        ("val", 1): 3,
        ("test", 1): 1,
    }
    spans = [c for c in stats.columns if c.endswith("_s") and c not in ("step_s", "samples_per_s")]
    pd.testing.assert_series_equal(stats[spans].sum(axis=1), stats["step_s"], check_names=False, rtol=1e-9)
    assert (stats["rss_bytes"].dropna() > 1e6).all()


def test_the_table_of_metrics_has_a_row_per_report(finished: Run) -> None:
    metrics = finished.metrics
    assert metrics["step"].tolist() == [7, 14, 14]
    assert metrics["epoch"].tolist() == [0, 1, 1]
    assert metrics["val/accuracy"].notna().tolist() == [True, True, False]
    assert metrics["test/accuracy"].notna().tolist() == [False, False, True]
    train = finished.stats.query("phase == 'train' and epoch == 0")
    mean = (train["loss"] * train["batch_size"]).sum() / train["batch_size"].sum()
    assert metrics["train/loss"][0] == pytest.approx(mean, rel=1e-12)


def test_the_ledger_of_hooks(finished: Run) -> None:
    costs = finished.hook_costs.set_index(["hook", "event"])["calls"]
    assert costs["ema", "on_update"] == 14
    assert costs["(loop)", "save"] == 2
    assert finished.summary("hook").loc[("ema", "on_update"), "calls"] == 14


def test_what_was_run_is_written_down_and_can_be_run_again(finished: Run) -> None:
    about = json.loads((Path(finished.path) / "run.json").read_text())
    assert (about["status"], about["attempts"], about["local"], about["seed"]) == ("finished", 1, True, 0)
    again = load_experiment(Path(finished.path) / "experiment.yaml")
    assert again == described(task_args={"test": 5}, hooks={"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}})


def test_the_log_has_what_was_shown(finished: Run) -> None:
    assert "val" in (Path(finished.path) / "log.txt").read_text()


def test_the_same_experiment_gives_the_same_numbers(finished: Run, tmp_path: Path) -> None:
    hooks = {"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}}
    again = run(described(task_args={"test": 5}, hooks=hooks), tmp_path, local=True)
    assert stored(again) == stored(finished)
    assert again.stats["loss"].tolist() == finished.stats["loss"].tolist()


def test_secrets_of_the_environment_are_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, "hunter2-is-secret")
    done = run(described(epochs=1), tmp_path, local=True)
    for file in ("run.json", "source.json", "experiment.yaml", "log.txt", "metrics.jsonl"):
        assert "hunter2" + "-is-secret" not in _without_diff(Path(done.path) / file)


def _without_diff(file: Path) -> str:
    if file.name != "run.json":
        return file.read_text()
    about = json.loads(file.read_text())
    return json.dumps({**about, "git": None})  # the diff may hold this very test


def test_several_workers_become_one_process_and_that_is_said(tmp_path: Path) -> None:
    done = run(described(epochs=1, workers={"count": 3}), tmp_path, local=True)
    assert done.stats["rank"].unique().tolist() == [0]
    assert "one process instead of 3 workers" in (tmp_path / "points/log.txt").read_text()


# Interrupted and resumed


@pytest.mark.parametrize("calls", [1, 3, 8, 9, 12])
def test_an_interrupted_run_is_resumed_as_if_nothing_had_been(
    tmp_path: Path, interrupt_after: Callable[[int | None], None], calls: int
) -> None:
    experiment = described(
        task_args=NOISY,
        batch_size=6,
        scheduler={"type": "CosineAnnealingLR", "T_max": 16},
        hooks={"ema": {"decay": 0.9}, "param_scheduler": {"every": "1 steps"}},
    )
    interrupt_after(None)
    whole = run(experiment, tmp_path, "whole", local=True)
    interrupt_after(calls)
    cut = run(experiment, tmp_path, "cut", local=True)
    assert cut.status == "interrupted"
    assert len(cut.stats.query("phase == 'train'")) < 16
    interrupt_after(None)
    done = resume(cut.path)
    assert done.status == "finished"
    assert stored(done) == stored(whole)
    assert each_row_once(done.stats)
    columns = ["rank", "phase", "epoch", "iteration", "step", "samples", "batch_size", "loss", "lr"]
    pd.testing.assert_frame_equal(done.stats[columns], whole.stats[columns])
    told = ["epoch", "step", "iteration", "samples", "train/loss", "train/accuracy", "val/loss", "val/accuracy"]
    pd.testing.assert_frame_equal(done.metrics[told], whole.metrics[told])


def test_a_run_interrupted_again_and_again_arrives(tmp_path: Path, interrupt_after: Callable[[int | None], None]) -> None:
    experiment = described(task_args=NOISY, batch_size=6)
    interrupt_after(None)
    whole = run(experiment, tmp_path, "whole", local=True)
    interrupt_after(3)
    cut = run(experiment, tmp_path, "cut", local=True)
    for _ in range(20):
        if cut.status != "interrupted":
            break
        cut = resume(cut.path)
    assert cut.status == "finished"
    assert stored(cut) == stored(whole)
    assert each_row_once(cut.stats)
    assert len(cut.stats) == len(whole.stats)
    assert cut.folder.metadata().attempts > 3


def test_a_failed_run_goes_on_from_its_last_checkpoint_when_it_is_mended(tmp_path: Path) -> None:
    def breaking(iteration: int) -> Experiment:
        breaks = {"type": "tests.tasks:Breaks", "iteration": iteration}
        return described(task_args=NOISY, batch_size=6, hooks={"breaks": breaks})

    with pytest.raises(RunError):
        run(breaking(11), tmp_path, "cut", local=True)
    whole = run(breaking(1000), tmp_path, "whole", local=True)
    file = tmp_path / "cut/experiment.yaml"
    file.write_text(file.read_text().replace("iteration: 11", "iteration: 1000"))
    done = resume(tmp_path / "cut")
    assert stored(done) == stored(whole)
    assert each_row_once(done.stats)
    assert done.stats["loss"].tolist() == whole.stats["loss"].tolist()
    # the iterations after the checkpoint of the first epoch's end were made twice
    attempts = Counter(done.stats.query("phase == 'train'")["attempt"])
    assert attempts == {0: 8, 1: 8}


def test_a_step_left_out_at_the_end_of_an_epoch_neither_loses_nor_doubles_a_validation(tmp_path: Path) -> None:
    """Eight iterations in an epoch: validation after the seventh step; the eighth iteration makes none, and then the
    checkpoint of the epoch is made, at the step that was validated already."""

    def breaking(iteration: int) -> Experiment:
        hooks = {
            "overflows": {"type": "tests.tasks:Overflows", "iteration": 8},
            "breaks": {"type": "tests.tasks:Breaks", "iteration": iteration},
        }
        task_args = {"train": 44, "val": 11}
        return described(task_args=task_args, batch_size=6, precision="fp16", validate_every="7 steps", hooks=hooks)

    with pytest.raises(RunError):
        run(breaking(10), tmp_path, "cut", local=True)
    whole = run(breaking(1000), tmp_path, "whole", local=True)
    assert whole.metrics[["iteration", "step"]].to_numpy().tolist() == [[7, 7], [8, 7], [15, 14], [16, 15]]
    assert whole.metrics["val/loss"].notna().tolist() == [True, False, True, True]
    file = tmp_path / "cut/experiment.yaml"
    file.write_text(file.read_text().replace("iteration: 10\n", "iteration: 1000\n"))
    done = resume(tmp_path / "cut")
    assert [attempt.checkpoint for attempt in done.folder.attempts()] == [None, "epoch-0001"]
    columns = ["rank", "phase", "epoch", "iteration", "step", "loss"]
    pd.testing.assert_frame_equal(done.stats[columns], whole.stats[columns])
    told = ["epoch", "step", "iteration", "train/loss", "val/loss"]
    pd.testing.assert_frame_equal(done.metrics[told], whole.metrics[told])


def test_a_run_whose_driver_died_is_lost_and_can_be_resumed(tmp_path: Path, interrupt_after: Callable[[int | None], None]) -> None:
    interrupt_after(5)
    cut = run(described(), tmp_path, local=True)
    process = subprocess.Popen(["true"])
    process.wait()
    cut.folder.update(status="running", pid=process.pid)
    assert open_run(cut.path).status == "lost"
    interrupt_after(None)
    done = resume(cut.path)
    assert done.status == "finished"
    assert done.folder.metadata().resumed
    assert len(done.stats.query("phase == 'train'")) == 14


def test_a_run_resumed_with_other_workers_has_them_from_then_on(
    tmp_path: Path, interrupt_after: Callable[[int | None], None]
) -> None:
    interrupt_after(3)
    cut = run(described(workers={"count": 3, "cpus": 2}), tmp_path, "cut", local=True)
    interrupt_after(None)
    done = resume(cut.path, workers=2)
    assert (done.status, done.config["workers"]["count"], done.config["workers"]["cpus"]) == ("finished", 2, 2)


def test_a_run_under_way_is_not_resumed(tmp_path: Path, interrupt_after: Callable[[int | None], None]) -> None:
    interrupt_after(5)
    cut = run(described(), tmp_path, local=True)
    with cut.folder.lease(), pytest.raises(UsageError, match=rf"is still running \(process {os.getpid()}, since .*Z\); end that first"):
        resume(cut.path, take_over=True)


def resumed_together(rank: int, world_size: int, path: str) -> str:
    dist.barrier()
    dist.destroy_process_group()
    try:
        return resume(path).status
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("number", [1, 2])
def test_of_two_that_take_up_a_run_at_once_one_goes_on_and_loses_nothing(
    tmp_path: Path, interrupt_after: Callable[[int | None], None], number: int
) -> None:
    interrupt_after(5)
    cut = run(described(task_args=NOISY), tmp_path, f"cut-{number}", local=True)
    interrupt_after(None)
    whole = run(described(task_args=NOISY), tmp_path, "whole", local=True)
    told = sorted(on_ranks(resumed_together, 2, cut.path), key=len)
    assert told[0] == "finished"
    assert re.search("is still running|at the same moment|has finished; there is nothing to resume", told[1])
    done = open_run(cut.path)
    assert len(done.folder.attempts()) == 2
    columns = ["rank", "phase", "epoch", "iteration", "step", "loss"]
    pd.testing.assert_frame_equal(done.stats[columns], whole.stats[columns])
    assert done.metrics["val/loss"].tolist() == whole.metrics["val/loss"].tolist()


def test_a_run_of_before_there_were_leases_is_judged_by_its_metadata(
    tmp_path: Path, interrupt_after: Callable[[int | None], None]
) -> None:
    interrupt_after(5)
    cut = run(described(), tmp_path, local=True)
    cut.folder.storage.delete(".driver")
    cut.folder.update(status="running")
    with pytest.raises(UsageError, match=rf"is still running \(process {os.getpid()}\); end that first"):
        resume(cut.path, take_over=True)


def test_a_run_of_another_machine_is_taken_over_only_where_that_is_said(
    tmp_path: Path, interrupt_after: Callable[[int | None], None]
) -> None:
    interrupt_after(5)
    cut = run(described(), tmp_path, local=True)
    interrupt_after(None)
    cut.folder.storage.delete(".driver")
    cut.folder.update(status="running", host="elsewhere")
    with pytest.raises(UsageError, match=rf"process {os.getpid()} on elsewhere.*hookyard resume {cut.path} --take-over"):
        resume(cut.path)
    done = resume(cut.path, take_over=True)
    assert (done.status, len(done.folder.attempts())) == ("finished", 2)


def test_more_workers_than_fit_are_refused_and_nothing_is_changed(
    tmp_path: Path, interrupt_after: Callable[[int | None], None]
) -> None:
    interrupt_after(5)
    cut = run(described(), tmp_path, local=True)
    cut.folder.update(engine="train")
    before = cut.folder.storage.read("experiment.yaml"), cut.folder.metadata()
    with pytest.raises(UsageError, match="asks for 1000 CPUs, this machine has"):
        resume(cut.path, workers=1000)
    assert (cut.folder.storage.read("experiment.yaml"), cut.folder.metadata()) == before


def test_a_failure_says_where_in_the_task_and_its_traceback_is_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match=rf"^rank 0: KeyError: 'x' \({Path(__file__)}:\d+, in loss\)$"):
        run(described(task=f"{__name__}:Wrong"), tmp_path, local=True)
    log = (tmp_path / "points/log.txt").read_text()
    assert 'raise KeyError("x")' in log
    assert log.rstrip().endswith("KeyError: 'x'")
    assert f"The traceback is in {tmp_path}/points/log.txt" in capfd.readouterr().err
    assert "Traceback" not in capfd.readouterr().err


class Wrong(Points):
    """Fails in its loss."""

    def loss(self, output: Any, batch: Any) -> Any:
        raise KeyError("x")


def test_the_end_says_how_many_ranks_there_were_and_where(finished: Run) -> None:
    metadata = finished.folder.metadata()
    assert (metadata.ranks, metadata.hosts) == (1, [os.uname().nodename])


def test_what_is_over_is_not_resumed(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has finished; there is nothing to resume"):
        resume(finished.path)
    with pytest.raises(UsageError, match="is no run"):
        resume(tmp_path / "nothing")


# What goes wrong


def test_a_name_that_is_taken_is_refused_before_anything_is_done(finished: Run) -> None:
    storage = Path(finished.path).parent
    before = sorted(path.name for path in storage.glob("**/*"))
    with pytest.raises(UsageError, match=f"hookyard resume {finished.path}"):
        run(described(), storage, local=True)
    assert sorted(path.name for path in storage.glob("**/*")) == before


def test_a_hook_that_fails_is_named_with_its_event(tmp_path: Path) -> None:
    experiment = described(hooks={"bad": {"type": "tests.tasks:Breaks"}})
    with pytest.raises(RunError, match="hook 'bad' failed in on_gradients on rank 0: ZeroDivisionError: broken on purpose"):
        run(experiment, tmp_path, local=True)
    failed = open_run(tmp_path / "points")
    assert failed.status == "failed"
    assert failed.error is not None
    assert "hook 'bad' failed in on_gradients" in failed.error
    # what was measured before is there: two whole iterations
    assert failed.stats["iteration"].tolist() == [1, 2]


def test_a_task_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ArithmeticError: this loss fails on purpose"):
        run(described(task_args={"fails": True}), tmp_path, local=True)
    assert open_run(tmp_path / "points").status == "failed"


def test_checkpoints_of_an_earlier_run_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Two runs of one name in two storages may share the folder of checkpoints."""
    experiment = described(epochs=1, hooks={"checkpoint": {"out_dir": str(tmp_path / "big")}})
    first = run(experiment, tmp_path / "one", local=True)
    assert first.checkpoint("last") == tmp_path / "big/points/epoch-0001"
    with pytest.raises(UsageError, match=r"big/points/epoch-0001 is of an earlier run"):
        run(experiment, tmp_path / "two", local=True)


def test_an_experiment_of_many_trials_is_no_run(tmp_path: Path) -> None:
    experiment = described(sweep={"metric": "val/loss", "mode": "min", "space": {"optimizer.lr": {"choice": [0.1]}}})
    with pytest.raises(UsageError, match="use sweep"):
        run(experiment, tmp_path, local=True)


# Elsewhere than in a folder


def scalars(done: Run) -> list[Any]:
    """What `json_lines` wrote of training's loss."""
    lines = map(json.loads, done.folder.storage.read("scalars.jsonl").splitlines())
    return [(line["phase"], line["iteration"], line.get("loss")) for line in lines]


def test_a_run_may_lie_where_there_are_no_folders(interrupt_after: Callable[[int | None], None]) -> None:
    storage = f"memory://test-{uuid.uuid4().hex}"
    experiment = described(task_args=NOISY, batch_size=6, hooks={"json_lines": {}})
    interrupt_after(None)
    whole = run(experiment, storage, "whole", local=True)
    assert whole.path == f"{storage}/whole"
    interrupt_after(11)
    cut = run(experiment, storage, "cut", local=True)
    assert cut.status == "interrupted"
    interrupt_after(None)
    done = resume(cut.path)
    assert each_row_once(done.stats)
    assert done.stats["loss"].tolist() == whole.stats["loss"].tolist()
    assert done.metrics["val/loss"].tolist() == whole.metrics["val/loss"].tolist()
    assert str(done.checkpoint("last")) == f"{storage}/cut/checkpoints/epoch-0002"
    # what hooks wrote on this machine's disk was taken along, and gone on with
    assert scalars(done) == scalars(whole)
    assert set(whole.folder.storage.names()) > {"experiment.yaml", "run.json", "log.txt", "metrics.jsonl", "stats.parquet"}
    assert any(name.endswith(".jsonl") and name != "metrics.jsonl" for name in whole.folder.storage.names())
    whole.folder.storage.delete("")
    done.folder.storage.delete("")


def test_where_there_are_no_folders_the_traceback_is_in_the_file_that_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(self: Any, output: Any, batch: Any) -> Any:
        raise ArithmeticError("broken on purpose")

    monkeypatch.setattr(Points, "loss", breaks)
    storage = f"memory://test-{uuid.uuid4().hex}"
    with pytest.raises(RunError):
        run(described(), storage, "broken", local=True)
    assert f"The traceback is in {storage}/broken/log.txt" in capsys.readouterr().err
    folder = open_run(f"{storage}/broken").folder
    assert "ArithmeticError: broken on purpose" in folder.storage.read("log.txt").decode()
    folder.storage.delete("")
