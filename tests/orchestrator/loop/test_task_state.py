"""What a task carries from batch to batch comes back with a checkpoint, on each rank."""

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hooks import Hook, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.interval import Interval
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Rows, experiment

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "recurrent_state.md"
EPOCHS, TEXTS, CHUNK = 3, 8, 6
KILLED_AT = {1: (4, 11), 2: (7, 10)}
"""Steps by the number of ranks: at a validation and right after an epoch's end; between two, and at
an epoch's end."""


class Killed(BaseException):
    pass


class Dies(Hook):
    """Ends the run after the checkpoint of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_saved(self, state: State, path: str) -> None:
        if state.step == self.step:
            raise Killed


def page_s_task(folder: Path) -> Any:
    """Returns the task that the page shows, from a module that another process can import."""
    text = PAGE.read_text()
    begin = text.index("# study/recurrent.py")
    (folder / "recurrent_of_the_page.py").write_text(text[begin : text.index("\n```", begin)])
    sys.path.insert(0, str(folder))
    return importlib.import_module("recurrent_of_the_page").Recurrent()


def raw(rank: int, ranks: int, folder: Path) -> tuple[list[float], list[Any]]:
    """The same in plain torch: the losses of a rank, and the weights at the end."""
    texts = torch.randint(10, (12, 61), generator=torch.Generator().manual_seed(0))[:TEXTS].chunk(
        ranks
    )[rank]
    torch.manual_seed(0)
    model: nn.Module = page_s_task(folder).model()
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(EPOCHS):
        hidden = None
        for begin in range(0, 61 - CHUNK, CHUNK):
            chunk = texts[:, begin : begin + CHUNK + 1]
            output, hidden = trained(chunk[:, :-1], hidden)
            loss = functional.cross_entropy(output.flatten(0, 1), chunk[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()]


def loop_of(rank: int, ranks: int, folder: Path, dies_at: int = 0) -> tuple[Loop, Rows]:
    world, rows = World(rank, ranks, rank), Rows()
    store = CheckpointStore(Storage(folder / "checkpoints"), is_master=world.is_master)
    hooks: dict[str, Hook] = {"checkpoint": Checkpoint(every=Interval.parse("1 steps"), keep=None)}
    hooks |= {"dies": Dies(dies_at)} if dies_at else {}
    settings = experiment(
        epochs=EPOCHS,
        batch_size=TEXTS // ranks,
        optimizer={"type": "SGD", "lr": 0.5},
        loader={"eval_batch_size": 4 // ranks},
        validate_every="4 steps",
    )
    return Loop(
        page_s_task(folder), settings, hooks, RunContext(world=world, store=store, recorder=rows)
    ), rows


def killed_and_resumed(rank: int, ranks: int, root: str) -> list[Any]:
    runs: list[Any] = [raw(rank, ranks, Path(root))]
    for step in KILLED_AT[ranks]:
        losses: list[float] = []
        for dies_at in (step, 0):
            loop, rows = loop_of(rank, ranks, Path(root, str(step)), dies_at)
            if not dies_at:
                loop.restore(f"step-{step:08d}" if step % 10 else f"epoch-{step // 10:04d}")
            with suppress(Killed):
                list(loop.run())
            losses += [loss for (loss,) in rows.columns("loss", phase="train")]
        runs.append((losses, [parameter.tolist() for parameter in loop.state.module.parameters()]))
    return runs


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_recurrent_model_resumes_as_a_raw_loop_bit_for_bit(
    ranks: int, tmp_path: Path
) -> None:
    for step in KILLED_AT[ranks]:
        (tmp_path / str(step)).mkdir()
    results = (
        [killed_and_resumed(0, 1, str(tmp_path))]
        if ranks == 1
        else on_ranks(killed_and_resumed, ranks, str(tmp_path))
    )
    for expected, *runs in results:
        assert len(expected[0]) == EPOCHS * 10
        for run in runs:
            assert run == expected
