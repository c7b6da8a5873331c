import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from hooks.training.gradient_clip import GradientClip
from hooks.training.nan_guard import NanGuard
from hooks.training.sampler_seed import DistSamplerSeed
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import TaskError
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.raw import raw_training
from tests.tasks import Points, Rows, Seen, experiment, numbers, plain

# Replicas


def _count_all_reduces(rank: int, world_size: int) -> tuple[int, int, int, dict[str, Any]]:
    loop = Loop(
        Points(),
        experiment(batch_size=4, accumulate=3),
        {},
        RunContext(world=World(rank, world_size, rank)),
    )
    calls: list[int] = []

    def counting(group, bucket):  # torch refuses annotations that are strings
        calls.append(loop.state.iteration)
        return allreduce_hook(group, bucket)

    model: Any = loop.state.model
    model.register_comm_hook(None, counting)
    list(loop.run())
    return len(calls), loop.state.step, loop.state.iteration, numbers(loop.state.module)


def test_ranks_exchange_gradients_once_per_step_not_per_micro_batch() -> None:
    (calls, steps, iterations, weights), *_ = on_ranks(_count_all_reduces)
    assert (calls, steps, iterations) == (6, 6, 14)
    for name, value in raw_training(Points(), batch_size=8, accumulate=3).state_dict().items():
        torch.testing.assert_close(torch.tensor(weights[name]), value, rtol=1e-5, atol=1e-6)


@dataclass
class Frozen(Points):
    """Points, whose first layer is frozen."""

    def model(self) -> nn.Module:
        model = super().model()
        model[0].requires_grad_(False)  # type: ignore[index]
        return model


@dataclass
class Change(Hook):
    """Freeze or unfreeze the first layer at the end of the first epoch."""

    trained: bool

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and state.epoch == 1:
            state.module.get_submodule("0").requires_grad_(self.trained)


def _change(rank: int, world_size: int) -> list[str]:
    errors = []
    for task, trained in ((Frozen(), True), (Points(), False)):
        loop = Loop(
            task,
            experiment(batch_size=4, epochs=2),
            {"change": Change(trained)},
            RunContext(world=World(rank, world_size, rank)),
        )
        with pytest.raises(TaskError) as error:
            list(loop.run())
        errors.append(str(error.value))
    return errors


def test_ranks_refuse_what_ddp_does_not_exchange_when_parameters_are_frozen_later() -> None:
    for unfrozen, frozen in on_ranks(_change):
        assert "0.weight, 0.bias did not require gradients when the ranks started" in unfrozen
        assert "freeze_parameters" in unfrozen
        assert "does not depend on 2 of the model's 4 parameters (0.weight, 0.bias)" in frozen


# Shards

# 23 samples of val are uneven on 2 ranks, and in batches of 4 a rank has one batch less than
# another.
TASK = Points(train=64, val=23, batch_norm=True, dropout=0.1)
ADAM = Component(type="AdamW", lr=0.01)


def written(strategy: str, **fields: Any) -> Experiment:
    return experiment(**{"batch_size": 4, "workers": Workers(strategy=strategy), **fields})


def losses(strategy: str, world: World, **fields: Any) -> dict[str, Any]:
    hooks = {
        "nan_guard": NanGuard(),
        "gradient_clip": GradientClip(max_norm=0.5),
        "ema": EMA(decay=0.9, evaluate="both"),
        "sync_buffers": SyncBuffers(),
    }
    rows = Rows()
    loop = Loop(TASK, written(strategy, **fields), hooks, RunContext(world=world, recorder=rows))
    reports = [report.metrics for report in loop.run()]
    weight: Any = loop.state.module.get_parameter("4.weight")
    loop.state.record(weight_norm=weight.norm())
    return {
        "rows of 4.weight here": len(weight.to_local() if hasattr(weight, "to_local") else weight),
        "loss": [loss for (loss,) in rows.columns("loss", phase="train")],
        "grad_norm": [float(row["grad_norm"]) for row in rows.rows if "grad_norm" in row],
        "weight_norm": float(loop.state.row["weight_norm"]),
        "reports": reports,
    }


def keeping(every: str, background: bool) -> dict[str, Hook]:
    return {
        "sampler_seed": DistSamplerSeed(),
        "ema": EMA(decay=0.7),
        "checkpoint": Checkpoint(
            every=Interval.parse(every),
            keep=None,
            publish=["model", "raw_model", "ema"],
            background=background,
        ),
        "seen": Seen(),
    }


def kept(
    root: Path,
    world: World,
    every: str = "3 steps",
    restore: str | None = None,
    run: bool = True,
    background: bool = False,
) -> dict[str, Any]:
    """A run, from a checkpoint on if one is given: what it saw and what it came to."""
    hooks, rows = keeping(every, background), Rows()
    store = CheckpointStore(Storage(root), "points", is_master=world.is_master)
    loop = Loop(
        TASK,
        written("fsdp", epochs=2, optimizer=ADAM),
        hooks,
        RunContext(world=world, store=store, recorder=rows),
    )
    if restore:
        loop.restore(restore)
    if run:
        list(loop.run())
    ema: Any = hooks["ema"]
    with ema.applied(loop.state):
        averages = plain(loop.state.module.state_dict())
    assert loop.state.optimizer is not None
    return {
        "model": plain(loop.state.module.state_dict()),
        "optimizer": plain(loop.state.optimizer.state_dict()["state"]),
        "averages": averages,
        "rows": rows.columns("phase", "iteration", "loss"),
        "seen": hooks["seen"].indices,
    }


# What runs on ranks


def compiled(world: World) -> tuple[dict[str, Any], list[str]]:
    """As torch captures it alone, and what each graph calls; with activations that are not kept."""
    graphs: list[str] = []

    def look(graph: Any, inputs: Any) -> Any:
        graphs.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend=look))
        return losses("fsdp", world, steps=2, compile=True, activation_checkpointing="4"), graphs


def _on_two(rank: int, world_size: int, root: str) -> dict[str, Any]:
    world, fields = World(rank, world_size, rank), {"steps": 6, "accumulate": 2}
    undisturbed = kept(Path(root, "whole"), world, background=True)
    again = Path(root, "again")
    if world.is_master:
        shutil.copytree(Path(root, "whole"), again)
    world.barrier()
    return {
        "losses": [losses(strategy, world, steps=20) for strategy in ("ddp", "fsdp")],
        "checkpointed": [
            losses(strategy, world, steps=6, activation_checkpointing=["0", "4"])
            for strategy in ("ddp", "fsdp")
        ],
        "accumulated": [losses(strategy, world, **fields) for strategy in ("ddp", "fsdp")],
        "compiled": compiled(world),
        "bf16": losses("fsdp", world, steps=6, precision="bf16")["loss"],
        "whole": undisturbed,
        "resumed": kept(again, world, restore="step-00000003"),
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("of two ranks")


@pytest.fixture(scope="module")
def two(root: Path) -> list[dict[str, Any]]:
    return on_ranks(_on_two, 2, str(root))


def check_alike(ddp: dict[str, Any], fsdp: dict[str, Any]) -> None:
    for name in ("loss", "grad_norm", "weight_norm"):
        assert fsdp[name] == pytest.approx(ddp[name], abs=1e-5)
    for one, other in zip(ddp["reports"], fsdp["reports"], strict=True):
        assert other == pytest.approx(one, abs=1e-5)


def test_two_sharded_ranks_train_as_two_replicas(two: list[dict[str, Any]]) -> None:
    """Losses, norms of clipped gradients, and validation with raw and averaged weights."""
    for rank, found in enumerate(two):
        ddp, fsdp = found["losses"]
        assert len(ddp["loss"]) == 20
        assert (ddp["rows of 4.weight here"], fsdp["rows of 4.weight here"]) == (3, (2, 1)[rank])
        check_alike(ddp, fsdp)
        check_alike(*found["accumulated"])


def test_activation_checkpointing_trains_bit_for_bit_the_same(two: list[dict[str, Any]]) -> None:
    for found in two:
        for kept, checkpointed in zip(found["losses"], found["checkpointed"], strict=True):
            assert checkpointed["loss"] == kept["loss"][:6]
            assert checkpointed["grad_norm"] == kept["grad_norm"][:6]


def test_each_unit_is_compiled_separately(two: list[dict[str, Any]]) -> None:
    for found in two:
        compiled, graphs = found["compiled"]
        assert compiled["loss"] == pytest.approx(found["losses"][1]["loss"][:2], rel=1e-5)
        for call in ("linear", "batch_norm", "relu", "dropout", "tag_activation_checkpoint"):
            assert any(call in graph for graph in graphs)
        assert not any(
            "all_gather" in graph or ("relu" in graph and "linear" in graph) for graph in graphs
        )


def test_bf16_is_near_fp32_and_not_the_same(two: list[dict[str, Any]]) -> None:
    exact = two[0]["losses"][1]["loss"][:6]
    assert two[0]["bf16"] == pytest.approx(exact, abs=0.05)
    assert two[0]["bf16"] != pytest.approx(exact, abs=1e-6)


def test_sharded_ranks_resume_in_mid_epoch_bit_for_bit(two: list[dict[str, Any]]) -> None:
    for found in two:
        undisturbed, resumed = found["whole"], found["resumed"]
        for part in ("model", "optimizer", "averages"):
            assert resumed[part] == undisturbed[part]
        assert resumed["seen"] == undisturbed["seen"][3:]
        later = [row for row in undisturbed["rows"] if row[0] == "val" or row[1] > 3]
        assert resumed["rows"] == later


PARTS = ("model", "optimizer", "averages")


def test_one_rank_restores_what_two_saved(two: list[dict[str, Any]], root: Path) -> None:
    alone = kept(root / "whole", World(), restore="epoch-0002", run=False)
    assert {part: alone[part] for part in PARTS} == {part: two[0]["whole"][part] for part in PARTS}


def test_each_rank_writes_its_shards_and_no_file_holds_the_model(
    two: list[dict[str, Any]], root: Path
) -> None:
    store = CheckpointStore(Storage(root / "whole"))
    shards = [
        name for name in store.read_manifest("epoch-0002")["files"] if name.startswith("shards")
    ]
    assert shards == ["shards-0000.pt", "shards-0001.pt", "shards.pt"]
    model = store.load("epoch-0002", "model.pt")
    assert not any(isinstance(value, Tensor) and value.ndim == 2 for value in model.values())


def test_published_weights_are_whole(two: list[dict[str, Any]], root: Path) -> None:
    (file,) = (root / "whole/published").iterdir()
    published = torch.load(file, weights_only=True)
    model = TASK.model()
    model.load_state_dict(published["raw_model"])
    assert plain(model.state_dict()) == two[0]["whole"]["model"]
    for weights in (published["model"], published["ema"]["model"]):
        model.load_state_dict(weights)
        assert plain(model.state_dict()) == two[0]["whole"]["averages"]
