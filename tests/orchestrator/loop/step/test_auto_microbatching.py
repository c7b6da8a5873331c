from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import Interval
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.gradient_clip import GradientClip
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import RunError, TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.step.batch_pieces import count_rows, split_batch
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.testing.small_loop import Screen
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, experiment, numbers

WORDS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"
    ),
}


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor) -> Tensor:
        return points.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise WORDS["cuda"]


class Allocator(nn.Module):
    """Stands for memory that takes so many rows in training, and refuses more."""

    def __init__(self, most: int, where: str) -> None:
        super().__init__()
        self.most = most
        self.where = where

    def forward(self, points: Tensor) -> Tensor:
        if not self.training or len(points) <= self.most:
            return points
        if self.where == "backward":
            return _InBackward.apply(points)  # type: ignore[no-any-return]
        raise WORDS[self.where]


@dataclass
class Fits(Points):
    """Points, so many of which fit in memory; the loss is a mean over tokens, and samples differ in
    their number."""

    most: int = 3
    where: str = "cpu"
    tokens: bool = False
    parts: bool = False

    def model(self) -> nn.Module:
        return nn.Sequential(*super().model(), Allocator(self.most, self.where))

    def batch_size(self, batch: Any) -> int:
        return int(self._tokens(batch).sum()) if self.tokens else len(batch[0])

    def _tokens(self, batch: Any) -> Tensor:
        return batch[1] + 1

    def loss(self, output: Tensor, batch: Any) -> Any:
        each = nn.functional.cross_entropy(output, batch[1], reduction="none")
        loss = (
            (each * self._tokens(batch)).sum() / self._tokens(batch).sum()
            if self.tokens
            else each.mean()
        )
        return {"near": loss * 0.25, "far": loss * 0.75} if self.parts else loss

    def metrics(self, output: Tensor, batch: Any) -> Any:
        return {} if self.tokens else super().metrics(output, batch)


def run_loop(
    task: Points,
    root: Path | None = None,
    restore: str | None = None,
    world: World | None = None,
    **fields: Any,
) -> dict[str, Any]:
    world = world or World()
    rows = Rows()
    told = Screen()
    hooks = {
        "gradient_clip": GradientClip(max_norm=0.5),
        **({"checkpoint": Checkpoint(every=Interval.parse("3 steps"), keep=None)} if root else {}),
    }
    store = CheckpointStore(Storage(root), "points", is_master=world.is_master) if root else None
    loop = Loop(
        task,
        experiment(**fields),
        hooks,
        RunContext(world=world, recorder=rows, store=store, display=told),
    )
    if restore:
        loop.restore(restore)
    reports = [report.metrics for report in loop.run()]
    return {
        "weights": numbers(loop.state.module),
        "reports": reports,
        "rows": [
            {name: float(value) for name, value in row.items() if name not in ("phase", "step_s")}
            for row in rows.rows
            if row["phase"] == "train"
        ],
        "told": told.lines,
    }


def check_near(
    found: dict[str, Any],
    expected: dict[str, Any],
    columns: tuple[str, ...] = (
        "loss",
        "lr",
        "grad_norm",
        "iteration",
        "step",
        "samples",
        "batch_size",
    ),
) -> None:
    for name, value in expected["weights"].items():
        torch.testing.assert_close(
            torch.tensor(found["weights"][name]), torch.tensor(value), rtol=1e-4, atol=1e-6
        )
    assert [[float(row[name]) for name in columns] for row in found["rows"]] == [
        pytest.approx([float(row[name]) for name in columns], rel=1e-4) for row in expected["rows"]
    ]
    assert found["reports"] == [pytest.approx(report, rel=1e-4) for report in expected["reports"]]


@pytest.mark.parametrize("fields", [{}, {"precision": "fp16"}])
def test_batch_that_fits_trains_bit_for_bit_as_without_splitting(fields: dict[str, Any]) -> None:
    found, expected = (
        run_loop(Fits(most=8, dropout=0.1), accumulate=accumulate, **fields)
        for accumulate in ("auto", 1)
    )
    assert {row.pop("microbatches") for row in found["rows"]} == {1}
    assert found == expected


@pytest.mark.parametrize(
    "fields", [{}, {"where": "cuda"}, {"where": "backward"}, {"parts": True}, {"tokens": True}]
)
def test_batch_that_does_not_fit_is_split_with_the_same_result(fields: dict[str, Any]) -> None:
    """Of 52 points in batches of 8 the last is of 4."""
    found = run_loop(Fits(**fields), accumulate="auto")
    expected = run_loop(Fits(**{**fields, "most": 8}))
    parts = ("near", "far") if fields.get("parts") else ()
    check_near(
        found,
        expected,
        ("loss", "lr", "grad_norm", "iteration", "step", "samples", "batch_size", *parts),
    )
    assert [row["microbatches"] for row in found["rows"]] == [4] * 14
    assert found["told"] == [
        f"out of memory: from iteration 1 on, each batch is split into {pieces} micro-batches"
        for pieces in (2, 4)
    ]


def test_resume_keeps_the_number_of_microbatches_bit_for_bit(tmp_path: Path) -> None:
    task = Fits(dropout=0.1)
    whole = run_loop(task, tmp_path, accumulate="auto", steps=12)
    again = run_loop(task, tmp_path, "step-00000006", accumulate="auto", steps=12)
    assert again["told"] == []
    assert again["weights"] == whole["weights"]
    assert [row["loss"] for row in again["rows"]] == [row["loss"] for row in whole["rows"][6:]]


@dataclass
class OneRankOnly(Fits):
    """Rank 1 alone has less memory."""

    def model(self) -> nn.Module:
        model: Any = super().model()
        model[-1].most = self.most if torch.distributed.get_rank() == 1 else 100
        return model


def _on_two(rank: int, world_size: int) -> list[Any]:
    world = World(rank, world_size, rank)
    return [
        run_loop(Fits(most=100), world=world, batch_size=4, steps=6),
        *(
            run_loop(
                Fits(most=1, where=where), world=world, batch_size=4, steps=6, accumulate="auto"
            )
            for where in ("cuda", "backward")
        ),
        run_loop(
            OneRankOnly(most=2, where="backward"),
            world=world,
            batch_size=4,
            steps=6,
            accumulate="auto",
        ),
    ]


def test_ranks_agree_on_microbatches_if_only_one_runs_out_of_memory() -> None:
    for rank, (whole, *pieces, alone) in enumerate(on_ranks(_on_two)):
        for found in (*pieces, alone):
            check_near(found, whole)
        assert [row["microbatches"] for row in alone["rows"]] == [2] * 6
        assert alone["told"] == (
            [
                "out of memory on rank 1: from iteration 1 on, each batch is split into 2 micro-batches"
            ]
            if rank == 0
            else []
        )


@dataclass
class Together(Fits):
    """Counts its samples along another dimension than the first."""

    def batch_size(self, batch: Any) -> int:
        return 8


@dataclass
class Ragged(Fits):
    def collate(self, samples: list[Any]) -> Any:
        return [*super().collate(samples), torch.zeros(3)]


def test_batch_that_cannot_be_split_is_refused() -> None:
    for task, message in (
        (Fits(most=0), "out of memory, even with one row at a time: .*DefaultCPUAllocator"),
        (Together(), "along the first dimension, but 8 samples became pieces of 8, 8"),
        (
            Ragged(),
            r"cannot be cut into pieces: it has a tensor of shape \(3,\) beside others of 8 rows",
        ),
    ):
        with pytest.raises((RunError, TaskError), match=message):
            run_loop(task, accumulate="auto")


Pair = namedtuple("Pair", "points names")


@dataclass(frozen=True)
class Views:
    first: Tensor
    scale: float


def test_microbatches_divide_samples_and_share_the_rest() -> None:
    three = torch.arange(3)
    shared = (torch.tensor(7.0), "text", None, 3, ("x", "y"))
    batch = {
        "views": [three, three * 10],
        "pair": Pair(three, ["a", "b", "c"]),
        "boxes": [{"box": torch.ones(number)} for number in (1, 2, 4)],
        "more": Views(three, 0.5),
        "shared": shared,
    }
    first, second = split_batch(batch, 2)
    assert [view.tolist() for view in second["views"]] == [[1, 2], [10, 20]]
    assert (first["pair"].points.tolist(), first["pair"].names) == ([0], ["a"])
    assert (second["pair"].points.tolist(), second["pair"].names) == ([1, 2], ["b", "c"])
    assert [len(entry["box"]) for entry in second["boxes"]] == [2, 4]
    assert (second["more"].first.tolist(), second["more"].scale) == ([1, 2], 0.5)
    assert first["shared"] == second["shared"] == shared
    assert [piece.tolist() for (piece,) in split_batch((three,), 8)] == [[0], [1], [2]]
    assert count_rows({"name": "x", "points": torch.zeros(5, 2)}) == 5
    assert count_rows("text") == 1
