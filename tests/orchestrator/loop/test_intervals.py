"""An interval in iterations counts those of the run, however short its epochs are and however often it is resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hooks import Hook, Interval, State, at_interval
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.training_loop import RunContext
from orchestrator.storage import Storage
from tests.tasks import Points, experiment

TASK = Points(train=52, val=23, test=23)  # 7, 3 and 3 iterations of 8 samples


@dataclass
class Paced(Hook):
    """Notes where it is called: the phase, the epochs that are over, the iteration in the phase."""

    every: int | Interval = 5
    before: list[tuple[str, int, int]] = field(default_factory=list)
    after: list[tuple[str, int, int]] = field(default_factory=list)

    @at_interval("every")
    def on_forward(self, state: State) -> None:
        self.before.append((state.phase, state.epoch, state.phase_iteration + 1))

    @at_interval("every")
    def on_step(self, state: State) -> None:
        self.after.append((state.phase, state.epoch, state.phase_iteration))


def test_interval_counts_iterations_of_each_phase_separately() -> None:
    hook = Paced()
    list(Loop(TASK, experiment(epochs=4), {"paced": hook}).run())
    # of 28 training iterations the 5th, 10th ...; of 12 in validation the 5th and the 10th; the test has 3
    assert [place for place in hook.after if place[0] == "train"] == [
        ("train", n // 7, n % 7 or 7) for n in (5, 10, 15, 20, 25)
    ]
    assert [place for place in hook.after if place[0] != "train"] == [("val", 2, 2), ("val", 4, 1)]
    assert hook.before == hook.after


@pytest.mark.parametrize(
    "fields", [{"validate_every": Interval(4, "steps")}, {"accumulate": 2}], ids=["steps", "accumulation"]
)
def test_resumed_run_keeps_the_interval(tmp_path: Path, fields: dict[str, Interval | int]) -> None:
    def live(restore: str = "") -> tuple[list[tuple[str, int, int]], Loop]:
        hooks = {"paced": Paced(), "checkpoint": Checkpoint(every=Interval(5, "steps"), keep=None)}
        loop = Loop(TASK, experiment(epochs=4, **fields), hooks, RunContext(store=CheckpointStore(Storage(tmp_path))))
        if restore:
            loop.restore(restore)
        list(loop.run())
        return hooks["paced"].after, loop  # type: ignore[attr-defined]

    whole, loop = live()
    assert loop.saving.store is not None
    for name in loop.saving.store.list_names():
        resumed, _ = live(name)
        assert resumed == whole[len(whole) - len(resumed) :]
        done = loop.saving.store.read_position(name).iteration
        assert len([place for place in resumed if place[0] == "train"]) == 28 // 5 - done // 5
