"""A run that goes on from a checkpoint of another."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from orchestrator import ConfigError, Run, Sweep, UsageError, open_run, resume, run, sweep
from orchestrator.disk.checkpoint_folder import list_checkpoints
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.ray_connection import Ray
from tests.orchestrator.runs.written import change
from tests.tasks import Points, PointSet, described

HOOKS = {"ema": {"decay": 0.9}, "checkpoint": {"keep": None, "best": "val/loss"}}
COSINE = {"type": "CosineAnnealingLR", "T_max": 4}
NOISY: dict[str, Any] = {"task_args": {"noisy": True, "dropout": 0.2, "batch_norm": True}}


def trained(root: Path, name: str, epochs: int, **fields: Any) -> Run:
    return run(
        described(epochs=epochs, hooks=HOOKS, scheduler=COSINE, **{**NOISY, **fields}),
        root,
        name,
        local=True,
    )


def everything(done: Run) -> dict[str, Any]:
    """What the last checkpoint holds that training goes on from."""
    folder = Path(str(done.checkpoint("last")))
    return {
        name: torch.load(folder / f"{name}.pt", weights_only=True)
        for name in ("model", "optimizer", "ema")
    }


def assert_equal(some: Run, other: Run) -> None:
    """Compare what training goes on from: weights, optimizer and averages, to the last bit."""
    contents = everything(some)
    expected = everything(other)

    for part, key in (("ema", "averaged"), ("optimizer", "group_parameters")):
        assert contents[part].pop(key) == expected[part].pop(key)
    torch.testing.assert_close(contents, expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("first"), "first", 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run as long as the first one and its continuation."""
    return trained(tmp_path_factory.mktemp("whole"), "whole", 4)


@pytest.mark.parametrize("label", ["last", "epoch-0001"])
def test_continuation_equals_a_longer_run(
    first: Run, whole: Run, tmp_path: Path, label: str
) -> None:
    """Weights, optimizer, averages, schedule, random numbers and counters: to the last bit."""
    longer = run(first.continue_from(label, ["epochs=4"]), tmp_path, local=True)
    assert_equal(longer, whole)
    begun = int(Path(str(first.checkpoint(label))).name[-1])
    assert longer.metrics["epoch"].tolist() == [*range(begun - 1, 4)]
    assert longer.metrics["val/loss"].tolist() == whole.metrics["val/loss"].tolist()[begun - 1 :]
    assert longer.stats.query("phase == 'train'")["iteration"].tolist() == [
        *range(7 * begun + 1, 29)
    ]


def test_continuation_records_its_parent(first: Run, tmp_path: Path) -> None:
    longer = run(
        first.continue_from("best", ["epochs=3", "optimizer.lr=0.05"]), tmp_path, local=True
    )
    name = Path(str(first.checkpoint("best"))).name
    assert longer.name == f"first-from-{name}"
    manifest = (Path(first.path) / "checkpoints" / name / "manifest.json").read_bytes()
    came_from = json.loads((Path(longer.path) / "run.json").read_text())["continued_from"]
    assert (came_from["run"], came_from["checkpoint"]) == (str(first.path), name)
    assert came_from["sha256"] == hashlib.sha256(manifest).hexdigest()
    assert longer.config["optimizer"]["lr"] == 0.05
    assert longer.stats["lr"].max() <= 0.05
    assert longer.best is not None
    assert longer.best.checkpoint_value == longer.best.value == longer.metrics["val/loss"].min()


def test_parent_checkpoint_stays_the_best_until_beaten(tmp_path: Path) -> None:
    """As it was made for being the best, between two others, it is not validated again."""
    hooks = {"checkpoint": {"every": 3, "keep": 1, "best": "val/loss"}}
    first = run(described(epochs=2, hooks=hooks), tmp_path, local=True)
    longer = run(
        first.continue_from("best", ["epochs=9", "optimizer.lr=0.0"]),
        tmp_path,
        "longer",
        local=True,
    )
    assert longer.best is not None
    assert longer.best.checkpoint == "epoch-0002"
    assert list_checkpoints(longer.folder) == ["epoch-0002", "epoch-0009"]
    for name, weight in first.weights("best").items():
        assert torch.equal(longer.weights("best")[name], weight)


def test_continuation_can_be_resumed_and_continued(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(first.continue_from("last", ["epochs=4"]), tmp_path, "whole", local=True)

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            run(first.continue_from("last", ["epochs=4"]), tmp_path, "begun", local=True)
    shutil.rmtree(tmp_path / "begun/checkpoints")  # killed while it was copied
    begun = resume(tmp_path / "begun")
    assert begun.stats["iteration"].min() == 1
    assert begun.metrics["epoch"].tolist() == whole.metrics["epoch"].tolist() == [1, 2, 3]
    assert_equal(begun, whole)
    again = run(
        open_run(tmp_path / "whole").continue_from("epoch-0003", ["epochs=4"]), tmp_path, local=True
    )
    assert again.name == "whole-from-epoch-0003"
    assert_equal(again, whole)


def test_the_best_trial_of_a_sweep_is_trained_longer(outcome: Sweep, tmp_path: Path) -> None:
    longer = run(outcome.best.continue_from("best", ["epochs=2"]), tmp_path, local=True)
    assert longer.name == "points-trial-0001-from-epoch-0001"
    assert longer.config["optimizer"]["lr"] == 0.1
    assert longer.metrics["val/loss"].iloc[0] == outcome.trials["val/loss"].min()
    assert longer.best is not None
    assert longer.best.metric == "val/loss"
    for name, weight in outcome.weights().items():
        assert torch.equal(outcome.best.weights("best")[name], weight)
        assert torch.equal(outcome.load().state_dict()[name], weight)


def test_impossible_continuation_is_refused_before_it_begins(first: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"no checkpoint 'epoch-0009' in .*; available: best-val-loss, best, last, epoch-0001, epoch-0002",
    ):
        first.continue_from("epoch-0009", ["epochs=4"])
    with pytest.raises(
        UsageError,
        match=r"epoch-0002 has already trained for 2 epochs; set epochs to more than that, such as epochs=4",
    ):
        first.continue_from("last")
    with pytest.raises(
        UsageError,
        match="has already trained for 14 steps; set steps to more than that, such as steps=28",
    ):
        first.continue_from("last", ["epochs=null", "steps=10"])
    with pytest.raises(
        UsageError, match=r"epoch-0002 has the state of SGD, not of AdamW; .*load only the weights"
    ):
        first.continue_from("last", ["epochs=4", "optimizer={type: AdamW, lr: 0.001}"])
    with pytest.raises(ConfigError, match=r"override 'epoch=4': epoch: .*did you mean 'epochs'"):
        first.continue_from("last", ["epoch=4"])
    shutil.copytree(first.path, tmp_path / "damaged")
    (tmp_path / "damaged/checkpoints/epoch-0002/optimizer.pt").write_bytes(b"")
    with pytest.raises(
        UsageError, match=r"epoch-0002: optimizer.pt is damaged: .*; other checkpoints: epoch-0001"
    ):
        open_run(tmp_path / "damaged").continue_from("epoch-0002", ["epochs=4"])
    before = (
        open_run(tmp_path / "damaged").continue_from("last", ["epochs=4"]).source.continued_from
    )
    assert before is not None
    assert before.checkpoint == "epoch-0001"


@pytest.mark.parametrize("name", ["points", "other"])
def test_continuation_trains_although_a_hook_has_stopped_its_parent(
    tmp_path: Path, name: str
) -> None:
    """Whatever its name, also that of the parent."""
    hooks = {
        "checkpoint": {"every": 10},
        # No value can improve by so much, so the second one ends the run, and so does each later one.
        "early_stopping": {"monitor": "val/loss", "mode": "min", "min_delta": 100, "patience": 1},
    }
    parent = run(described(epochs=9, hooks=hooks), tmp_path / "parent", "points", local=True)
    assert (parent.status, parent.metrics["iteration"].tolist()) == ("stopped", [7, 14])
    longer = run(parent.continue_from("last", ["epochs=20"]), tmp_path / "child", name, local=True)
    assert longer.metrics["iteration"].tolist() == [14, 21]


def test_checkpoint_of_an_earlier_run_is_not_taken_for_that_of_the_parent(tmp_path: Path) -> None:
    """Though it has the same name, in an `out_dir` where a deleted run left it."""
    hooks = {"checkpoint": {"out_dir": str(tmp_path / "kept")}}
    first = run(described(epochs=2, hooks=hooks), tmp_path, "first", local=True)
    run(described(epochs=1, hooks=hooks, seed=7), tmp_path, "longer", local=True)
    shutil.rmtree(tmp_path / "longer")
    with pytest.raises(UsageError, match="longer/epoch-0001 belongs to an earlier run"):
        run(first.continue_from("epoch-0001", ["epochs=3"]), tmp_path, "longer", local=True)


def test_trials_cannot_continue_a_checkpoint(first: Run, tmp_path: Path) -> None:
    space = "sweep={metric: val/loss, mode: min, trials: 1, space: {optimizer.lr: {uniform: [0.1, 0.2]}}}"
    with pytest.raises(UsageError, match="a sweep cannot continue from"):
        sweep(first.continue_from("last", ["epochs=4", space]), tmp_path, local=True)


@pytest.fixture
def streamed(tmp_path: Path) -> Run:
    """On an iterable dataset, and left at its only report."""
    fields = {
        "task": "tests.iterable_tasks:IterablePoints",
        "epochs": None,
        "steps": 4,
        "hooks": {"checkpoint": {}},
    }
    done = run(described(**fields), tmp_path, "streamed", local=True)
    change(done.folder, status="interrupted")
    return done


def test_stream_with_other_ranks_is_refused_by_the_driver(
    streamed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank, and each process of its loader, keeps a place of its own."""
    monkeypatch.setattr(Ray, "__enter__", Mock(side_effect=AssertionError("Ray is started")))
    ranks = (
        r"iterable, and each rank has its own place in it, and .*checkpoints/epoch-0001 is of 1 rank, not 2; use"
        r" 1 .*workers.count=1"
    )
    change(streamed.folder, engine="gang", local=False)
    with pytest.raises(UsageError, match=ranks):
        resume(streamed.path, workers=2)
    with pytest.raises(UsageError, match=ranks):
        run(
            streamed.continue_from("last", ["steps=9", "workers.count=2"]), tmp_path, engine="train"
        )
    processes = streamed.continue_from("last", ["steps=9", "loader.num_workers=1"])
    with pytest.raises(UsageError, match=r"epoch-0001 needs loader.num_workers=0"):
        run(processes, tmp_path, local=True)
    assert [path.name for path in tmp_path.iterdir()] == ["streamed"]
    assert streamed.status == "interrupted"


def test_number_of_loader_workers_is_checked_where_the_cluster_decides_that_of_ranks(
    streamed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ray, "__enter__", Mock(side_effect=AssertionError("Ray is started")))
    longer = streamed.continue_from(
        "last", ["steps=9", "loader.num_workers=1", "workers.count=[1, 2]"]
    )
    with pytest.raises(UsageError, match=r"epoch-0001 needs loader.num_workers=0"):
        run(longer, tmp_path, engine="train")


def test_stream_of_several_ranks_is_not_continued_in_one_process(
    streamed: Run, tmp_path: Path
) -> None:
    manifest = Path(str(streamed.checkpoint("last"))) / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "world_size": 2}))
    with pytest.raises(UsageError, match=r"is of 2 ranks, not 1; leave out --local \(local=True\)"):
        run(streamed.continue_from("last", ["steps=9"]), tmp_path, local=True)


@dataclass
class OwnLoader(Points):
    """Loads its training data itself."""

    def data(self) -> dict[str, Any]:
        loader: Any = StatefulDataLoader(PointSet(52, False, 0), 8)
        return {**super().data(), "train": loader}


def test_number_of_loader_workers_may_change_beside_the_tasks_own_train_loader(
    tmp_path: Path,
) -> None:
    """It is only for the loaders that Hookyard makes, here that of `val`."""
    fields = {"task": f"{__name__}:OwnLoader", "epochs": None, "hooks": {"checkpoint": {}}}
    first = run(described(**fields, steps=4), tmp_path, "first", local=True)
    whole = run(described(**fields, steps=9), tmp_path, "whole", local=True)

    longer = run(
        first.continue_from("last", ["steps=9", "loader.num_workers=1"]), tmp_path, local=True
    )

    assert longer.status == "finished"
    contents, expected = (
        torch.load(Path(str(done.checkpoint("last"))) / "model.pt", weights_only=True)
        for done in (longer, whole)
    )
    torch.testing.assert_close(contents, expected, rtol=0, atol=0)


def test_resume_refuses_another_optimizer(streamed: Run) -> None:
    text = streamed.folder.read_experiment_text()
    (Path(streamed.path) / "experiment.yaml").write_text(
        text.replace("type: SGD", "type: Adam").replace("  momentum: 0.9\n", "")
    )
    with pytest.raises(UsageError, match=r"has the state of SGD, not of Adam; keep the optimizer"):
        resume(streamed.path)
    assert streamed.status == "interrupted"
