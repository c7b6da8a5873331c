"""Guarantees for hooks, as docs/migrating/ lists them: where phases begin, and when batch and
gradients exist."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hooks import HOOKS, GradientClip, Hook, Interval, State
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers


class Begins(Hook):
    """Keeps the epochs in which a training phase began."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            self.epochs.append(state.epoch)


def test_phase_starts_with_each_epoch_of_a_run_with_steps() -> None:
    begins = Begins()
    # 52 samples in batches of 8 are 7 steps an epoch
    list(Loop(Points(val=0), experiment(steps=17), {"begins": begins}).run())
    assert begins.epochs == [0, 1, 2]


def test_phase_starts_again_after_a_validation_within_an_epoch() -> None:
    begins = Begins()
    # validations at 3, 6 and 7
    list(
        Loop(
            Points(), experiment(epochs=1, validate_every=Interval(3, "steps")), {"begins": begins}
        ).run()
    )
    assert begins.epochs == [0, 0, 0]


class Batches(Hook):
    """Notes at which events of an iteration there is a batch."""

    def __init__(self) -> None:
        self.there: list[tuple[str, bool]] = []

    def on_iteration_start(self, state: State) -> None:
        self.there.append((state.phase, state.batch is not None))

    def on_batch(self, state: State) -> None:
        self.there.append((state.phase, state.batch is not None))


def test_batch_exists_from_on_batch_on() -> None:
    batches = Batches()
    list(Loop(Points(train=16, val=8), experiment(epochs=1), {"batches": batches}).run())
    assert batches.there == [("train", False), ("train", True)] * 2 + [
        ("val", False),
        ("val", True),
    ]


class Notes(Hook):
    """Notes what some events find: the first layer's weights, where phases begin, and gradients."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self.begun: list[tuple[int, int]] = []
        self.gradients: list[tuple[bool, bool]] = []

    def keep(self, event: str, module: nn.Module) -> None:
        self.found[event] = next(module.parameters()).flatten().tolist()

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        self.keep("on_load", state.module)

    def on_start(self, state: State) -> None:
        self.keep("on_start", state.module)

    def on_phase_start(self, state: State) -> None:
        self.begun.append((state.epoch, state.phase_iteration))

    def on_step(self, state: State) -> None:
        self.gradients.append((state.stepped, next(state.module.parameters()).grad is None))
        if state.step == 3:
            self.keep("on_step", state.module)
            state.request_checkpoint("a test")


def resumed_after_three_steps(folder: Path) -> tuple[Notes, Notes]:
    store, first, second = CheckpointStore(Storage(folder)), Notes(), Notes()
    list(Loop(Points(val=0), experiment(epochs=1), {"notes": first}, RunContext(store=store)).run())
    loop = Loop(Points(val=0), experiment(epochs=1), {"notes": second}, RunContext(store=store))
    loop.restore("step-00000003")
    list(loop.run())
    return first, second


def test_model_has_the_restored_weights_in_on_load_and_on_start(tmp_path: Path) -> None:
    first, second = resumed_after_three_steps(tmp_path)
    assert "on_load" not in first.found
    assert (
        second.found["on_load"]
        == second.found["on_start"]
        == first.found["on_step"]
        != first.found["on_start"]
    )


def test_phase_starts_again_when_resumed_in_its_middle(tmp_path: Path) -> None:
    first, second = resumed_after_three_steps(tmp_path)
    assert (first.begun, second.begun) == ([(0, 0)], [(0, 3)])


def test_gradients_are_none_after_a_step_and_kept_before_it() -> None:
    notes = Notes()
    list(Loop(Points(val=0), experiment(epochs=1, accumulate=3), {"notes": notes}).run())
    assert notes.gradients == [
        (stepped, stepped) for stepped in (False, False, True, False, False, True, True)
    ]


class Gathers(Hook):
    """Adds the numbers of the ranks into each checkpoint, which every rank must take part in."""

    collective = True

    def on_phase_end(self, state: State) -> None:
        state.request_checkpoint("a test")

    def on_save(self, state: State, checkpoint: dict[str, object]) -> None:
        total = torch.tensor(state.rank + 1)
        dist.all_reduce(total)
        checkpoint["gathered"] = {"total": total}


class Noting(CheckpointStore):
    """Notes the files that its rank writes."""

    written: tuple[str, ...] = ()

    def write_files(self, name: str, files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        self.written += tuple(files)
        return super().write_files(name, files)


def _save(rank: int, world_size: int, root: str) -> list[str]:
    store = Noting(Storage(root), is_master=rank == 0)
    hooks = {"gathers": Gathers(), "ema": HOOKS["ema"]()}
    list(
        Loop(
            Points(val=0),
            experiment(epochs=1),
            hooks,
            RunContext(world=World(rank, world_size, rank), store=store),
        ).run()
    )
    return sorted(store.written)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Where two ranks saved once, and what each wrote."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, on_ranks(_save, 2, str(folder))


def test_collective_in_on_save_does_not_hang(saved: tuple[Path, list[list[str]]]) -> None:
    assert CheckpointStore(Storage(saved[0])).load("epoch-0001", "gathered.pt")["total"].item() == 3


def test_shared_files_are_written_by_one_rank(saved: tuple[Path, list[list[str]]]) -> None:
    of_master, of_other = saved[1]
    assert of_master == [
        "ema.pt",
        "gathered.pt",
        "hooks.pt",
        "model.pt",
        "optimizer.pt",
        "rank-0000.pt",
    ]
    assert of_other == ["rank-0001.pt"]


class Asks(Hook):
    """Asks for the norm of the gradients in each event of an iteration."""

    def on_iteration_start(self, state: State) -> None:
        state.gradient_norm()

    on_batch = on_forward = on_loss = on_backward = on_gradients = on_step = on_iteration_start


@pytest.mark.parametrize(
    "fields", [{}, {"accumulate": 2}, {"accumulate": "auto"}, {"precision": "fp16"}]
)
def test_gradients_are_clipped_by_their_present_norm_whenever_a_hook_asked_for_it(
    fields: dict[str, Any],
) -> None:
    """At the end of an iteration there are no gradients, and their norm is zero."""
    weights = []
    for hooks in ({}, {"asks": Asks()}):
        loop = Loop(Points(), experiment(**fields), {**hooks, "clip": GradientClip(max_norm=0.01)})
        list(loop.run())
        weights.append(numbers(loop.state.module))
    assert weights[0] == weights[1]
