"""The model of a run, loaded outside of it: the evaluated weights, wherever and however they were
trained."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from experiments.digits import Digits
from orchestrator import CheckpointError, Run, UsageError, run
from orchestrator.disk.run_folder import RunFolder
from tests.orchestrator.runs.several_ranks import train_on_ranks
from tests.tasks import Points, described

DIGITS = {
    "task": "experiments.digits:Digits",
    "task_args": {"width": 8},
    "batch_size": 64,
    "optimizer": {"type": "SGD", "lr": 0.05},
}
EMA = {"ema": {"decay": 0.9}}


def reported(run: Run, label: str, metric: str = "val/accuracy") -> float:
    """What the run reported of a checkpoint."""
    checkpoint = run.checkpoint(label)
    assert isinstance(checkpoint, Path)
    metrics = run.metrics
    return float(
        metrics[metric][metrics["epoch"] == int(checkpoint.name.removeprefix("epoch-")) - 1].iloc[0]
    )


def measured(model: nn.Module, task: Any) -> float:
    batch = torch.utils.data.default_collate(list(task.data()["val"]))
    with torch.no_grad():
        right = model(batch[0]).argmax(1) == batch[1]
    return int(right.sum()) / len(right)


def test_accuracy_of_the_loaded_model_is_the_reported_one(tmp_path: Path) -> None:
    done = run(described(**DIGITS, hooks=EMA), tmp_path, local=True)
    model = done.load("best")
    assert not model.training
    assert type(model) is nn.Sequential
    assert measured(model, Digits()) == done.metrics["val/accuracy"].max() == reported(done, "best")
    assert (
        measured(done.load("epoch-0001"), Digits())
        == reported(done, "epoch-0001")
        != reported(done, "last")
    )
    assert measured(done.load("last"), Digits()) == reported(done, "last")
    again = Digits(width=8).model()
    again.load_state_dict(done.weights("best"))
    assert measured(again.eval(), Digits()) == reported(done, "best")


def test_each_metric_has_its_evaluated_weights(tmp_path: Path) -> None:
    hooks = {
        "ema": {"decay": 0.9, "evaluate": "both"},
        "checkpoint": {"best": ["val/accuracy", "val/ema/accuracy"]},
    }
    done = run(described(hooks=hooks), tmp_path, local=True)
    for label, metric in (
        ("best-val-accuracy", "val/accuracy"),
        ("best-val-ema-accuracy", "val/ema/accuracy"),
    ):
        assert measured(done.load(label), Points()) == pytest.approx(reported(done, label, metric))
    raw, averaged = done.weights("best-val-accuracy"), done.weights("best-val-ema-accuracy")
    assert any(not torch.equal(raw[name], averaged[name]) for name in raw)


@dataclass
class Unsaved(Points):
    """A model with a buffer that no state dict holds, and a tensor that nothing holds but the
    seed."""

    def model(self) -> nn.Module:
        model = Shifted(torch.rand(5))
        model.register_buffer("scale", torch.rand(5), persistent=False)
        return model


class Shifted(nn.Module):
    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.shift, self.linear = shift, nn.Linear(5, 3)

    def forward(self, points: Tensor) -> Tensor:
        return self.linear(points * self.scale + self.shift)


def test_loaded_model_has_unsaved_buffers_and_random_state_is_kept(tmp_path: Path) -> None:
    done = run(
        described(task="tests.orchestrator.runs.test_model:Unsaved", seed=3), tmp_path, local=True
    )
    before = torch.get_rng_state()
    model = done.load()
    assert torch.equal(torch.get_rng_state(), before)
    assert measured(model, Unsaved()) == reported(done, "best")
    kept = torch.load(Path(str(done.checkpoint())) / "rank-0000.pt", weights_only=True)["buffers"]
    assert torch.equal(dict(model.named_buffers())["scale"], kept["scale"])


def test_model_of_several_ranks_loads_as_a_plain_one(tmp_path: Path) -> None:
    ddp, fsdp = (
        described(hooks=EMA, workers={"count": 2, "strategy": strategy})
        for strategy in ("ddp", "fsdp")
    )
    for one in train_on_ranks(2, tmp_path, ddp=ddp, fsdp=fsdp):
        model = one.load("best")
        assert {type(weight) for weight in model.state_dict().values()} == {Tensor}
        assert measured(model, Points()) == reported(one, "best")


# What can be wrong


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(described(), tmp_path_factory.mktemp("runs"), local=True)


def test_missing_checkpoint_error_lists_the_others(done: Run, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint 'epoch-0009' in .*; available: best-val-accuracy, best, last, epoch-0001, epoch-0002",
    ):
        done.load("epoch-0009")
    unjudged = run(described(epochs=1, validate_every=0), tmp_path, local=True)
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint 'best' in .*: the run did not validate; available: last, epoch-0001",
    ):
        unjudged.load("best")
    unjudged.load("last")


def test_missing_best_checkpoint_error_names_its_cause(done: Run, tmp_path: Path) -> None:
    misspelled = {"checkpoint": {"best": "val/acuracy", "mode": "max"}}
    with pytest.raises(UsageError, match="best: there is no metric 'val/acuracy'"):
        run(described(hooks=misspelled), tmp_path, "misspelled", local=True)
    with pytest.raises(
        CheckpointError, match=r"best' in .*: no report has the metric .*'val/acuracy'"
    ):
        Run(RunFolder(tmp_path / "misspelled")).load("best")
    off = run(described(hooks={"checkpoint": False}), tmp_path, "off", local=True)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*: hooks.checkpoint was off"):
        off.load("last")


def changed(done: Run, tmp_path: Path, **config: Any) -> Run:
    """The run as it would be had its code changed since."""
    folder = tmp_path / "changed"
    shutil.copytree(done.path, folder)
    (folder / "experiment.yaml").write_text(yaml.safe_dump({**done.config, **config}))
    return Run(RunFolder(folder))


def test_missing_task_error_says_what_to_do(done: Run, tmp_path: Path) -> None:
    moved = changed(done, tmp_path, task="gone.away:Task")
    with pytest.raises(
        UsageError, match=r"no module 'gone'(.|\n)*call this there.*weights need no code"
    ):
        moved.load("last")
    assert moved.weights("last").keys() == done.weights("last").keys()


def test_changed_model_is_refused(done: Run, tmp_path: Path) -> None:
    grown = changed(done, tmp_path, task_args={"batch_norm": True})
    with pytest.raises(
        CheckpointError,
        match=r"epoch-0002 does not fit the model that tests.tasks:Points now makes.*: 5 missing: ",
    ):
        grown.load("last")
