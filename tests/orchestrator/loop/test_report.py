from __future__ import annotations

from pathlib import Path

from hooks import Interval
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


def test_a_report_says_where_the_newest_checkpoint_is(tmp_path: Path) -> None:
    hooks = {"checkpoint": Checkpoint(every=Interval(3, "steps"), save_last=False)}
    # 7 steps an epoch: checkpoints at 3 and 6, and at 9 and 12
    reports = Loop(Points(), experiment(), hooks, RunContext(store=CheckpointStore(Storage(tmp_path)))).run()
    assert [report.checkpoint for report in reports] == [f"{tmp_path}/step-00000006", f"{tmp_path}/step-00000012"]


def _report_steps(rank: int, world_size: int, train: int) -> list[tuple[int, list[str]]]:
    loop = Loop(
        Points(train=train, val=3, test=1),
        experiment(epochs=2, batch_size=4, validate_every=Interval(3, "steps")),
        {},
        RunContext(world=World(rank, world_size, rank)),
    )
    return [(report.metrics["step"], sorted(report.metrics)) for report in loop.run()]


def test_all_ranks_report_at_the_same_places_though_their_data_is_uneven() -> None:
    # 29 samples: 15 for each rank after one is repeated, 4 batches
    first, second = on_ranks(_report_steps, 2, 29)
    assert first == second
    assert [step for step, _ in first] == [3, 4, 6, 8, 8]
