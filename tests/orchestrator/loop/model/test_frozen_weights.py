"""Checkpoints of the trainable weights alone lead to the same training and the same model as
complete ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hooks import Hook, State
from orchestrator import ConfigError, Run, UsageError, open_run, resume, run
from orchestrator.errors import CheckpointError, RunError
from orchestrator.loop.model.frozen_weights import compute_digest
from tests.orchestrator.runs.several_ranks import create, train
from tests.ranks import on_ranks
from tests.tasks import Points, described

HERE = "tests.orchestrator.loop.model.test_frozen_weights"
FROZEN = {"0.weight", "0.bias", "1.weight", "1.bias"}
BUFFERS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
TRAINED = {"4.weight", "4.bias"}
SCALE = Path("scale.txt")


@dataclass
class Backbone(Points):
    """Trains the last layer; the frozen ones have BatchNorm, whose statistics move, and depend on a
    file."""

    batch_norm: bool = True
    dropout: float = 0.3
    bf16: bool = False

    def model(self) -> nn.Module:
        model = super().model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in TRAINED)
        if SCALE.exists():
            with torch.no_grad():
                model.get_parameter("0.weight").mul_(float(SCALE.read_text()))
        return model.bfloat16() if self.bf16 else model

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        points = batch[0].bfloat16() if self.bf16 else batch[0]
        output: Tensor = model(points)
        return output.float()


@dataclass
class FreezesLate(Points):
    """Freezes the first layer when it makes its optimizer."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        model.get_submodule("0").requires_grad_(False)
        trained = [value for value in model.parameters() if value.requires_grad]
        return torch.optim.SGD(trained, lr=0.1)


@dataclass
class Thaw(Hook):
    """Trains another layer in some epochs."""

    layer: str = "0.weight"
    first: int = 1
    last: int = 1

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            is_trained = self.first <= state.epoch <= self.last
            state.module.get_parameter(self.layer).requires_grad_(is_trained)


@dataclass
class Breaks(Hook):
    """Fails at a step, in the first attempt."""

    step: int = 0
    marker: str = "marker"

    def on_step(self, state: State) -> None:
        if state.step == self.step and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise ZeroDivisionError("broken on purpose")


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(weights: str, hooks: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    checkpoint = {"every": "3 steps", "keep": None, "weights": weights}
    hooks = {"ema": {"decay": 0.6}, "checkpoint": checkpoint, **(hooks or {})}
    return described(**{"task": f"{HERE}:Backbone", "epochs": 3, **fields, "hooks": hooks})


def final(done: Run, file: str = "model.pt") -> dict[str, Any]:
    folder = done.checkpoint("last")
    assert isinstance(folder, Path)
    stored: dict[str, Any] = torch.load(folder / file, weights_only=True)
    return stored


def assert_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    assert some.keys() == others.keys()
    assert all(torch.equal(some[name], others[name]) for name in some)


def test_frozen_parameters_are_left_out_and_buffers_stay() -> None:
    whole = run(make("all"), "runs", "whole", local=True)
    part = run(make("trainable"), "runs", "part", local=True)
    assert final(whole).keys() == FROZEN | BUFFERS | TRAINED
    kept = {name: final(whole)[name] for name in (*TRAINED, *BUFFERS)}
    assert_equal(final(part), kept)
    assert not torch.equal(kept["1.running_mean"], torch.zeros(8))
    averages = final(whole, "ema.pt")["model"]
    assert_equal(final(part, "ema.pt")["model"], {name: averages[name] for name in kept})
    assert_equal(part.weights("last"), {name: averages[name] for name in kept})


def test_parameters_that_are_frozen_with_the_optimizer_are_left_out() -> None:
    part = run(
        make("trainable", task=f"{HERE}:FreezesLate", optimizer={"type": "task"}),
        "runs",
        "part",
        local=True,
    )
    whole = part.load("last").state_dict().keys()
    assert whole - final(part).keys() == {"0.weight", "0.bias"}


@pytest.mark.parametrize("bf16", [False, True])
def test_loaded_and_evaluated_models_are_those_of_complete_checkpoints(bf16: bool) -> None:
    """Of the averages; and of the raw weights, which `hooks.ema=false` leaves."""
    runs = {}
    for weights in ("all", "trainable"):
        fields = {"task_args": {"bf16": bf16}}
        runs[weights] = run(make(weights, **fields), "runs", weights, local=True)
    whole, part = runs.values()
    for label in ("best", "step-00000012"):
        assert_equal(part.load(label).state_dict(), whole.load(label).state_dict())
    for overrides in ([], ["hooks.ema=false"]):
        reports = [
            done.evaluate("step-00000012", overrides=overrides).reports()[0]["val/loss"]
            for done in (whole, part)
        ]
        assert reports[0] == reports[1]
    outputs = [done.predict(label="last").load()["output"].tolist() for done in (whole, part)]
    assert torch.equal(*(torch.tensor(np.stack(rows)) for rows in outputs))


@pytest.mark.parametrize("thaw", [None, {"first": 1, "last": 1}, {"first": 1, "last": 9}])
def test_resume_is_exact(thaw: Mapping[str, Any] | None) -> None:
    """Also if a layer is trained in the second epoch, or from it on: the weights that it gets are in
    the checkpoints."""
    thawing = {"thaw": {"type": f"{HERE}:Thaw", **thaw}} if thaw else {}
    optimizer = {"type": "SGD", "lr": 0.1, "momentum": 0.9}
    whole = run(make("all", thawing, optimizer=optimizer), "runs", "whole", local=True)
    breaking = {**thawing, "breaks": {"type": f"{HERE}:Breaks", "step": 17}}
    with pytest.raises(RunError, match="broken on purpose"):
        run(make("trainable", breaking, optimizer=optimizer), "runs", "part", local=True)
    part = resume("runs/part")
    assert [attempt.checkpoint for attempt in part.folder.read_attempts()] == [
        None,
        "step-00000015",
    ]
    assert part.stats["loss"].tolist() == whole.stats["loss"].tolist()
    assert_equal(part.load("last").state_dict(), whole.load("last").state_dict())
    assert ("0.weight" in final(part)) == bool(thaw)
    assert "1.weight" not in final(part)


def test_frozen_weights_come_from_init_again() -> None:
    """Of a checkpoint of another run, which may be gone when it is needed."""
    pretrained = run(described(task_args={"batch_norm": True}), "runs", "pretrained", local=True)
    init = {"init": {"from": "runs/pretrained@last", "except": "4.*"}}
    whole = run(make("all", **init), "runs", "whole", local=True)
    breaking = {"breaks": {"type": f"{HERE}:Breaks", "step": 10}}
    with pytest.raises(RunError, match="broken on purpose"):
        run(make("trainable", breaking, **init), "runs", "part", local=True)
    part = resume("runs/part")
    assert_equal(part.load("last").state_dict(), whole.load("last").state_dict())
    assert torch.equal(part.load("last").state_dict()["0.weight"], final(pretrained)["0.weight"])
    reported = whole.reports()[-1]["val/loss"]
    assert part.evaluate("last").reports()[0]["val/loss"] == reported
    longer = run(part.continue_from("last", ["epochs=4"]), "runs", local=True)
    again = run(whole.continue_from("last", ["epochs=4"]), "runs", local=True)
    assert_equal(longer.load("last").state_dict(), again.load("last").state_dict())

    file = Path("runs/pretrained/checkpoints/epoch-0002/manifest.json")
    file.write_text(file.read_text() + " ")
    with pytest.raises(CheckpointError, match="has changed since this run began"):
        part.load("last")


def test_several_ranks_resume_and_load() -> None:
    hooks = {"breaks": {"type": f"{HERE}:Breaks", "step": 999}}
    fields = {"workers": {"count": 2}, "epochs": 2}
    whole = create(make("all", hooks, **fields), Path("runs").absolute(), "whole")
    part = create(make("trainable", hooks, **fields), Path("runs").absolute(), "part")
    again = replace(part, checkpoint=f"{part.location}/checkpoints/step-00000003")
    on_ranks(train, 2, [whole, part, again])
    complete = open_run(whole.location).load("last").state_dict()
    assert_equal(open_run(part.location).load("last").state_dict(), complete)
    assert len(open_run(part.location).folder.read_attempts()) == 2


# What is refused


def test_other_frozen_weights_are_refused() -> None:
    part = run(make("trainable"), "runs", "part", local=True)
    SCALE.write_text("1.5")
    words = r"has only the trainable weights, and frozen ones .*\(0\.weight\): restore what model"
    with pytest.raises(CheckpointError, match=words):
        part.load("last")
    with pytest.raises(UsageError, match=words):
        part.evaluate("last")
    with pytest.raises(UsageError, match=words):
        run(part.continue_from("last", ["epochs=4"]), "runs", local=True)
    SCALE.unlink()
    with pytest.raises(UsageError, match="frozen ones of the model are not those of its run"):
        part.evaluate("last", overrides=["seed=5"])
    assert part.load("last")


def test_complete_checkpoint_cannot_become_a_partial_one() -> None:
    whole = run(make("all"), "runs", "whole", local=True)
    experiment = whole.continue_from("last", ["epochs=4", "hooks.checkpoint.weights=trainable"])
    with pytest.raises(UsageError, match=r"has all weights, so hooks\.checkpoint\.weights must be"):
        run(experiment, "runs", local=True)
    part = run(make("trainable"), "runs", "part", local=True)
    complete = part.continue_from("last", ["epochs=4", "hooks.checkpoint.weights=all"])
    longer = run(complete, "runs", local=True)
    assert final(longer).keys() == FROZEN | BUFFERS | TRAINED


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "tests.tasks:Points"}, "trainable has no effect: no parameter is frozen"),
        ({"workers": {"strategy": "fsdp", "count": 2}}, "weights: trainable does not work with"),
        (
            {"hooks": {"ema": {"average": "power", "std": 0.1, "snapshots": "1 epoch"}}},
            "average: power keeps snapshots of all weights",
        ),
    ],
)
def test_what_cannot_work_is_refused(fields: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(make("trainable", **fields), "runs", local=True)


def test_digest_is_of_the_numbers_in_any_layout() -> None:
    tensor = torch.randn(2, 3, 4, 5)
    assert compute_digest(tensor) == compute_digest(tensor.to(memory_format=torch.channels_last))
    assert compute_digest(tensor) != compute_digest(tensor + 1e-6)
    assert compute_digest(torch.tensor(1.0)) != compute_digest(torch.tensor(2.0))
