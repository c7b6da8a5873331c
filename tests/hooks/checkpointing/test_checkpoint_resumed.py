"""What the checkpoint hook goes on with after a resume: its interval, its best and what it keeps, alike on ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from hooks import Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from tests.hooks.checkpointing.simulated_run import SimulatedRun, names, simulate
from tests.hooks.phases import run_phase


def _resume(run: SimulatedRun, epoch: int) -> SimulatedRun:
    """Another run, from the checkpoint after so many epochs."""
    hook = Checkpoint(
        **{field: getattr(run.hooks[0], field) for field in ("every", "keep", "best", "mode", "save_last")}
    )
    later = SimulatedRun(hook, store=run.store, epoch=epoch, step=2 * epoch)
    later.restore(names(epoch)[0])
    return later


def test_a_resumed_run_remembers_the_best() -> None:
    """Lightning forgot it, and marked the first epoch after a resume."""
    run = simulate(Checkpoint(keep=1, best="val/accuracy"), 0.5, 0.9, 0.7)
    later = _resume(run, 3)
    later.epoch(0.8)
    assert later.store.labels["best"] == "epoch-0002"
    assert later.store.stored == ["epoch-0002", "epoch-0004"]


def test_interval_continues_after_a_resume() -> None:
    """ClassyVision counts phases from where it resumes."""
    run = simulate(Checkpoint(every=Interval(2), best="val/accuracy", save_last=False), 0.1, 0.2, 0.9)
    later = _resume(run, 3)
    for _ in range(3):
        later.epoch(0.5)
    assert later.store.did("save")[-2:] == ["epoch-0004", "epoch-0006"]


def test_resumed_checkpoint_knows_that_it_is_the_best() -> None:
    """Its own name was not known when its state was written."""
    run = simulate(Checkpoint(every=Interval(100), keep=1, best="val/accuracy"), 0.5, 0.9)
    run.store.labels.clear()
    later = _resume(run, 2)
    assert later.store.labels == {"best": "epoch-0002", "best-val-accuracy": "epoch-0002"}
    later.epoch(0.8)
    assert later.store.stored == ["epoch-0002"]
    later.epoch(0.95)
    assert later.store.stored == ["epoch-0004"]


def test_checkpoints_after_the_restored_one_are_superseded() -> None:
    """Resuming at epoch 2 of 4: what came later goes with the next save, and its best is forgotten."""
    run = simulate(Checkpoint(keep=None, best="val/accuracy"), 0.5, 0.4, 0.9, 0.3)
    later = _resume(run, 2)
    assert later.store.labels["best"] == "epoch-0001"
    assert len(later.store.stored) == 4, "nothing goes before something new is stored"
    later.epoch(0.6)
    assert later.store.stored == ["epoch-0001", "epoch-0002", "epoch-0003"]
    assert later.store.labels["best"] == "epoch-0003"


def test_score_is_forgotten_if_the_mode_changes() -> None:
    run = SimulatedRun(Checkpoint(best="val/score", mode="max"))
    run.epoch(**{"val/score": 9.0})
    run.epoch(**{"val/score": 8.0})
    hook = Checkpoint(best="val/score", mode="min")
    later = SimulatedRun(hook, store=run.store, epoch=2, step=4)
    later.restore("epoch-0002")
    later.epoch(**{"val/score": 20.0})
    later.epoch(**{"val/score": 10.0})
    assert later.store.labels["best"] == "epoch-0004"


class _NoStore:
    """The store of a rank that is not the master and cannot see the master's disk."""

    def names(self) -> list[str]:
        return []

    def retain(self, owner: str, names: Sequence[str]) -> None: ...
    def mark(self, name: str, *labels: str, metric: str = "") -> None: ...
    def publish(self, name: str, parts: Mapping[str, str], folder: str) -> str:
        return ""

    def find_evaluated_weights(self, label: str) -> str:
        return ""


def test_all_ranks_decide_equally_after_a_resume() -> None:
    """What a rank sees of the disk must not change what it asks for."""
    run = simulate(Checkpoint(every=Interval(100), best="val/accuracy", save_last=False), 0.9, 0.5)
    saved = run.store.states["epoch-0001"]["checkpoint"]
    asked = []
    for store in (run.store, _NoStore(), None):
        hook, state = (
            Checkpoint(every=Interval(100), best="val/accuracy", save_last=False),
            State(checkpoints=store, epoch=1, step=2),
        )
        hook.load_state_dict(copy.deepcopy(saved))
        hook.on_load(state, {"name": "epoch-0001"})
        hook.on_start(state)
        for accuracy in (0.8, 0.95):
            run_phase(hook, state, "train", [{}] * 2)
            run_phase(hook, state, "val", [{}], metrics={"val/accuracy": accuracy})
            asked.append(list(state.checkpoint_reasons))
            state.checkpoint_reasons.clear()
    assert asked == [[], ["best"]] * 3
