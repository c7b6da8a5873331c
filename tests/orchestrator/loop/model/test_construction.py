"""Building a model, whole or on the meta device, of which each rank then initializes its shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.construction import build_model
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, plain


class Scale(nn.Module):
    """A parameter and a random buffer of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.register_buffer("noise", torch.rand(size))

    def forward(self, points: Tensor) -> Tensor:
        return points * self.weight + self.noise


class ResetScale(Scale):
    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.5)
        nn.init.uniform_(self.noise, 2, 3)


@dataclass
class Scaled(Points):
    """Notes the devices on which its model is built."""

    resets: bool = True

    def model(self) -> nn.Module:
        scale = ResetScale if self.resets else Scale
        model = nn.Sequential(
            nn.Linear(5, 16), scale(16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
        )
        self.devices = {tensor.device.type for tensor in model.state_dict().values()}
        return model


def make_loop(task: Points, world: World, root: str = "", **fields: Any) -> Loop:
    workers = {"count": world.world_size, "strategy": "fsdp", "meta_device": True}
    store = CheckpointStore(Storage(root), "points", is_master=world.is_master) if root else None
    return Loop(
        task,
        experiment(batch_size=4, workers=workers, **fields),
        {},
        RunContext(world=world, store=store),
    )


def weights(loop: Loop) -> Any:
    return plain(loop.state.module.state_dict())


def train_on_a_rank(rank: int, world_size: int, root: str) -> dict[str, Any]:
    world, task = World(rank, world_size), Scaled()
    whole = make_loop(task, world, f"{root}/checkpoints", epochs=2)
    begun, shards = weights(whole), len(whole.state.module.state_dict()["0.weight"].to_local())
    reports = []
    for report in whole.run():
        reports.append(report.metrics)
        if report.metrics["epoch"] == 0:
            whole.save()
    resumed = make_loop(Scaled(), world, f"{root}/checkpoints", epochs=2)
    resumed.restore("epoch-0001")
    list(resumed.run())
    from_file = weights(make_loop(Scaled(), world, init={"from": f"{root}/weights.pt"}))
    return {
        "built on": task.devices,
        "begun": begun,
        "shards": shards,
        "loss": [metrics["train/loss"] for metrics in reports],
        "trained": weights(whole),
        "resumed": weights(resumed),
        "from file": from_file,
    }


def test_ranks_initialize_shards_of_a_model_that_none_of_them_builds_whole(tmp_path: Path) -> None:
    torch.manual_seed(3)
    file = {name: value.tolist() for name, value in Scaled().model().state_dict().items()}
    torch.save({name: torch.tensor(value) for name, value in file.items()}, tmp_path / "weights.pt")
    first, second = on_ranks(train_on_a_rank, 2, str(tmp_path))
    assert first["built on"] == second["built on"] == {"meta"}
    assert first["begun"] == second["begun"], "all ranks have the same model"
    begun = {name: torch.tensor(value) for name, value in first["begun"].items()}
    assert begun["1.weight"].tolist() == [0.5] * 16
    assert begun["2.running_var"].tolist() == [1.0] * 16
    assert ((begun["1.noise"] >= 2) & (begun["1.noise"] <= 3)).all()
    weight = begun["0.weight"]
    assert first["shards"] == second["shards"] == 8
    assert weight.abs().max() <= 5**-0.5  # the bound of nn.Linear
    assert weight.unique().numel() == weight.numel(), "each rank has drawn its own numbers"
    assert first["loss"][1] < first["loss"][0]
    assert first["resumed"] == first["trained"]
    assert first["from file"] == file


def test_a_part_that_cannot_initialize_itself_is_an_error_before_training() -> None:
    with pytest.raises(
        TaskError, match=r"parts of the model need reset_parameters\(\): '1' \(Scale\)"
    ):
        build_model(Scaled(resets=False), on_meta=True)
    build_model(Scaled(resets=False), on_meta=False)


def test_parts_of_torch_can_initialize_themselves() -> None:
    @dataclass
    class Attends(Points):
        def model(self) -> nn.Module:
            return nn.TransformerEncoderLayer(8, 2)

    assert {
        parameter.device.type for parameter in build_model(Attends(), on_meta=True).parameters()
    } == {"meta"}
