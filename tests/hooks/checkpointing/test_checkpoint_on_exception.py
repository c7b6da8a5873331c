"""What is kept of a run that failed, against a run that did not get so far; and that a resume does not use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Breaks, Points, experiment, numbers

TASK = Points(train=52, dropout=0.3)


def train(root: Path, hooks: dict[str, Hook], **fields: Any) -> Loop:
    """Trains until it fails; checkpoints lie where a run has them, below the artifacts."""
    store = CheckpointStore(Storage(root) / "checkpoints")
    loop = Loop(TASK, experiment(**fields), hooks, RunContext(store=store, artifacts=root))
    with pytest.raises(HookError, match="broken on purpose"):
        list(loop.run())
    return loop


def test_it_holds_the_last_whole_step(tmp_path: Path) -> None:
    """Iteration 10 of 14 fails before its update: what is kept is what nine steps give."""
    checkpoint = Checkpoint(save_on_exception=True)
    loop = train(tmp_path, {"checkpoint": checkpoint, "breaks": Breaks(iteration=10)})
    nine = Loop(TASK, experiment(steps=9), {})
    list(nine.run())
    kept = torch.load(tmp_path / "failed" / "step-00000009" / "rank=0.pt", weights_only=True)
    assert {name: tensor.tolist() for name, tensor in kept["model"].items()} == numbers(nine.state.module)
    assert nine.state.optimizer is not None
    momenta = [one["momentum_buffer"] for one in kept["optimizer"]["state"].values()]
    for ours, theirs in zip(momenta, nine.state.optimizer.state.values(), strict=True):
        assert torch.equal(ours, theirs["momentum_buffer"])
    assert kept["counters"] == {
        "epoch": 1,
        "step": 9,
        "iteration": 9,
        "samples": 68,
        "phase": "train",
        "phase_iteration": 2,
    }
    assert "in on_gradients" in kept["error"]
    assert "ZeroDivisionError: broken on purpose" in kept["error"]
    assert (kept["scheduler"], kept["scaler"]) == (None, None)
    assert loop.state.step == 9


def test_a_resume_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    train(
        tmp_path, {"checkpoint": Checkpoint(every=Interval(1), save_on_exception=True), "breaks": Breaks(iteration=10)}
    )
    store = CheckpointStore(Storage(tmp_path) / "checkpoints")
    assert (store.names(), store.latest()) == (["epoch-0001"], "epoch-0001")
    assert [path.name for path in (tmp_path / "failed").rglob("*.pt")] == ["rank=0.pt"]


@pytest.mark.parametrize(
    ("checkpoint", "iteration"),
    [(Checkpoint(), 10), (Checkpoint(save_on_exception=True), 1)],
    ids=["not asked for", "no step made"],
)
def test_nothing_is_kept_unasked_or_before_the_first_step(
    checkpoint: Checkpoint, iteration: int, tmp_path: Path
) -> None:
    train(tmp_path, {"checkpoint": checkpoint, "breaks": Breaks(iteration=iteration)})
    assert not (tmp_path / "failed").exists()


def test_what_cannot_be_saved_does_not_hide_the_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "failed").write_text("in the way")
    train(tmp_path, {"checkpoint": Checkpoint(save_on_exception=True), "breaks": Breaks(iteration=10)})
    assert "hook 'checkpoint' failed in on_exception" in caplog.text


class BreaksOn(Hook):
    """Fails on one rank at its fourth iteration."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_batch(self, state: State) -> None:
        if state.rank == self.rank and state.iteration == 3:
            raise ZeroDivisionError("broken on purpose")


def _on_a_rank(rank: int, world_size: int, folder: str) -> Any:
    hooks: dict[str, Hook] = {"checkpoint": Checkpoint(save_on_exception=True), "breaks": BreaksOn(1)}
    world = World(rank=rank, world_size=world_size)
    loop = Loop(Points(train=52), experiment(), hooks, RunContext(artifacts=Path(folder), world=world))
    with pytest.raises((HookError, RuntimeError)):
        list(loop.run())


def test_every_rank_that_sees_a_failure_keeps_what_it_has_and_waits_for_none(tmp_path: Path) -> None:
    """Rank 1 fails by itself and is gone; rank 0 then fails in the middle of its backward pass, as nobody answers."""
    on_ranks(_on_a_rank, 2, str(tmp_path))
    kept = [torch.load(tmp_path / "failed" / "step-00000003" / f"rank={rank}.pt", weights_only=True) for rank in (0, 1)]
    assert kept[0]["counters"] == kept[1]["counters"]
    for name, tensor in kept[0]["model"].items():
        assert torch.equal(tensor, kept[1]["model"][name])
    assert "broken on purpose" in kept[1]["error"]
    assert "broken on purpose" not in kept[0]["error"]
