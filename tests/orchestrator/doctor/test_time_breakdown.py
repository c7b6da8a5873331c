from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.column_names import SPANS
from orchestrator.doctor.diagnosis import diagnose
from orchestrator.doctor.hook_costs import find_costly_hooks
from orchestrator.doctor.iteration_sample import sample_iterations
from orchestrator.doctor.time_breakdown import (
    find_checkpoint_stalls,
    find_data_waits,
    find_time_outside_spans,
    sum_times,
)
from orchestrator.tables import row_blocks
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import costs, slower, training


def asked(stats: pd.DataFrame) -> tuple[Rows, pd.DataFrame]:
    rows = Rows.wrap(stats)
    return rows, sum_times(rows)


def seen(stats: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, found = asked(stats)
    return sample_iterations(rows).rows, found


def test_a_run_short_of_data_says_how_much_of_the_time_it_waits() -> None:
    """22 ms of 120 on every rank."""

    def change(own: dict[str, Any]) -> None:
        own["data_wait_s"] += 0.02

    (finding,) = find_data_waits(*seen(training(4, change=change)))
    assert finding.weight == pytest.approx(0.022 / 0.12, rel=0.02)
    assert "18% of the time on every rank" in finding.sentence
    (of_one,) = find_data_waits(*seen(training(1, change=change)))
    assert "% of the time (median 22 ms per iteration)" in of_one.sentence


@pytest.mark.parametrize("block", [1, 4])
def test_shares_are_of_the_iterations_in_which_a_span_was_measured(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 ms of 120 in every other iteration, also in a run so long that each block has four."""
    if block > 1:
        monkeypatch.setattr(row_blocks, "MAX_ROWS_AS_BLOCKS", 10)
        monkeypatch.setattr(row_blocks, "MAX_STORED_NUMBERS", 4 * 400 * 12 // block)
    stats = training(2, change=lambda own: own.update(data_wait_s=own["data_wait_s"] + 0.02))
    stats.loc[stats["iteration"] % 2 == 0, [name for name in SPANS if name in stats]] = np.nan
    assert [finding.weight for finding in find_data_waits(*seen(stats))] == [
        pytest.approx(0.022 / 0.12, rel=0.02)
    ]
    assert diagnose(stats).figures.data_wait_share == pytest.approx(0.022 / 0.12, rel=0.02)


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_rank_that_waits_for_data_makes_no_run_short_of_it(ranks: int) -> None:
    assert (
        list(find_data_waits(*seen(training(ranks, change=slower("data_wait_s", 1, 0.05))))) == []
    )


def test_table_without_times_has_an_empty_time_breakdown() -> None:
    stats = training(1).drop(columns="step_s")
    assert list(find_costly_hooks(asked(stats)[1], costs((0, "a", "on_step", 1, 99.0)))) == []
    assert list(find_data_waits(*seen(stats))) == []
    assert list(find_checkpoint_stalls(*asked(stats))) == []
    assert list(find_time_outside_spans(asked(stats)[1])) == []


def test_checkpoints_for_which_training_stands_still() -> None:
    """Four times 1 s beside 20 s."""
    stats = training(2)
    stats["checkpoint_s"] = np.where(stats["iteration"].isin([50, 100, 150, 200]), 1.0, 0.0)
    stats["step_s"] += stats["checkpoint_s"]
    (finding,) = find_checkpoint_stalls(*asked(stats))
    assert (finding.numbers["times"], finding.numbers["median_s"], finding.numbers["max_s"]) == (
        4,
        1.0,
        1.0,
    )
    assert finding.weight == pytest.approx(4 / 24, rel=0.02)


def test_much_time_between_the_spans() -> None:
    def change(own: dict[str, Any]) -> None:
        own["other_s"] += 0.05

    (finding,) = find_time_outside_spans(asked(training(2, change=change))[1])
    assert finding.weight == pytest.approx(0.051 / 0.15, rel=0.02)
