from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import UsageError, open_run, run
from orchestrator.cli import app
from orchestrator.disk.attempts import write_attempt
from orchestrator.disk.new_run import create_run
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from tests.ranks import on_ranks
from tests.tasks import Points, described


@dataclass
class Sees(Hook):
    """Writes the true places of a batch's samples into its row."""

    def on_batch(self, state: State) -> None:
        state.row["seen"] = " ".join(map(str, state.batch[2].tolist()))


class Mixed(BatchSampler):
    """Batches in an order of their own."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        yield from (batches[place] for place in torch.randperm(len(batches)).tolist())


@dataclass
class Weighted(Points):
    """Draws its samples by weight, and takes random numbers to make its data and these weights."""

    own: bool = False

    def data(self) -> Any:
        self.train = 40 + int(torch.randint(20, ()))
        return super().data()

    def sampler(self, dataset: Any, phase: str) -> list[float] | None:
        weights: list[float] = torch.rand(len(dataset)).tolist()
        return weights

    def loader(
        self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]
    ) -> Iterable[Any]:
        own = Mixed(batches.sampler, batches.batch_size, drop_last=False) if self.own else batches
        return super().loader(dataset, own, phase, options)


class _Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (Points().data()["train"][place] for place in range(9))


class Streamed(Points):
    def data(self) -> Any:
        return {**super().data(), "train": _Endless()}


HOOKS = {"sees": {"type": "tests.orchestrator.runs.test_samples:Sees"}}


def agreed(done: Run, where: str) -> int:
    """Compares what is said of some rows with what their batches truly had; returns how many
    samples that were."""
    stats = done.load_stats(where=where)
    truth = [
        (row.rank, row.phase, row.epoch, row.iteration, int(place), row.loss)
        for row in stats.itertuples()
        for place in str(row.seen).split()
    ]
    said = done.samples(where)
    assert [*said.columns] == ["rank", "phase", "epoch", "iteration", "index", "loss"]
    assert [*said.itertuples(index=False, name=None)] == truth
    return len(truth)


def _live(rank: int, world_size: int, *attempts: tuple[Assignment, int]) -> None:
    """Run attempts of a run, each up to so many reports."""
    for given, reports in attempts:
        session = Session(given, World(rank, world_size, rank)).reports()
        for _ in range(reports):
            next(session, None)
        session.close()


def test_samples_are_those_of_the_batches_across_resumes(tmp_path: Path) -> None:
    fields = {
        "epochs": 2,
        "accumulate": 2,
        "validate_every": "2 steps",
        "hooks": {**HOOKS, "checkpoint": {"every": "1 steps"}},
    }
    first = described(**fields, batch_size=4)
    folder = create_run(tmp_path, "points", to_yaml(first))
    second, third = (
        described(**fields, batch_size=3, seed=1),
        described(**fields, batch_size=5, loader={"eval_batch_size": 4}),
    )
    on_ranks(
        _live,
        2,
        (Assignment(first.source, str(folder)), 1),
        (Assignment(second.source, str(folder)), 3),
    )
    _live(0, 1, (Assignment(third.source, str(folder)), 9))
    attempts = folder.read_attempts()
    assert [
        (attempt.world_size, attempt.position.iteration, attempt.position.offset)
        for attempt in attempts
    ] == [
        (2, 0, 0),
        (2, 4, 32),
        (1, 12, 24),
    ]
    done = Run(folder)
    assert agreed(done, "phase == 'train'") >= 2 * 52
    assert agreed(done, "phase == 'val'") > 50
    with_rank = CliRunner().invoke(
        app, ["samples", str(folder), "--where", "iteration == 2", "--rank", "1", "--format", "csv"]
    )
    outside = CliRunner().invoke(
        app, ["samples", str(folder), "--where", "loss > 5) or (rank == 0", "--rank", "1"]
    )
    assert (outside.exit_code, "where: syntax error at or near" in outside.stderr) == (2, True)
    with pytest.raises(UsageError, match="has no rank 2; it had 2 ranks, counted from 0"):
        done.samples(rank=2)
    measured = done.evaluate("last", local=True)
    assert measured.samples("loss > 0 -- all")["index"].tolist() == [*range(23)]
    seen = str(
        done.load_stats(["seen"], "phase == 'train' and rank == 1 and iteration == 2")["seen"].iloc[
            0
        ]
    )
    assert [line.split(",")[4] for line in with_rank.stdout.split()[1:]] == seen.split()


def test_samples_with_own_sampler_and_random_data(tmp_path: Path) -> None:
    done = run(
        described(task="tests.orchestrator.runs.test_samples:Weighted", hooks=HOOKS),
        tmp_path,
        local=True,
    )
    before = torch.random.get_rng_state()
    assert agreed(done, "phase == 'train' and loss > 0.9") > 16
    assert agreed(done, "phase == 'val'") == 2 * 23
    assert torch.equal(torch.random.get_rng_state(), before)


def test_unknown_samples_are_refused(tmp_path: Path) -> None:
    task = "tests.orchestrator.runs.test_samples:"
    own = run(
        described(name="own", task=f"{task}Weighted", task_args={"own": True}, epochs=1),
        tmp_path,
        local=True,
    )
    with pytest.raises(
        UsageError,
        match=r"loader\(\) of Weighted makes the batches of train; their samples are unknown",
    ):
        own.samples()
    run(
        described(name="stream", task=f"{task}Streamed", steps=2, epochs=None), tmp_path, local=True
    )
    told = CliRunner().invoke(
        app, ["samples", str(tmp_path / "stream"), "--where", "iteration == 2"]
    )
    assert "train is an iterable dataset without indices" in told.stderr
    assert told.stdout.split()[-7:-1] == ["0", "train", "0", "2", "-", "8"]
    assert open_run(tmp_path / "stream").samples()["position"].tolist() == [*range(9)]
    changed = run(described(name="changed"), tmp_path, local=True)
    folder = open_run(changed.path).folder
    (attempt,) = folder.read_attempts()
    assert attempt.order is not None
    attempt.order.sizes["train"] = 51  # type: ignore[index]
    write_attempt(folder.storage, attempt)
    with pytest.raises(UsageError, match="had 51 samples in attempt 0, but has 52 now"):
        changed.samples()


def test_iterations_before_the_attempt_are_refused(tmp_path: Path) -> None:
    """They would be counted from the end of the epoch."""
    done = run(described(), tmp_path, local=True)
    (attempt,) = done.folder.read_attempts()
    begun_later = replace(attempt, position=replace(attempt.position, iteration=5))
    write_attempt(done.folder.storage, begun_later)
    with pytest.raises(
        UsageError,
        match="has a row of iteration 5 in epoch 1, of which attempt 0 trained iterations 6 to 12",
    ):
        done.samples("iteration = 5")
    assert len(done.samples("iteration = 6")) == 8


def test_loader_of_a_rank_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(described(), tmp_path, local=True)
    made = []
    loader = Points.loader
    monkeypatch.setattr(
        Points, "loader", lambda task, *args: made.append(args[2]) or loader(task, *args)
    )
    assert {*done.samples("phase in ('train', 'val')")["phase"]} == {"train", "val"}
    assert made == ["train", "val"]
