from __future__ import annotations

from hooks import Interval
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


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
