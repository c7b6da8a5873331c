import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.doctor.diagnosis import diagnose
from orchestrator.doctor.iteration_sample import sample_iterations
from orchestrator.doctor.time_breakdown import (
    find_checkpoint_stalls,
    find_costly_hooks,
    find_data_waits,
    find_time_outside_spans,
    sum_times,
)
from orchestrator.tables import row_blocks
from orchestrator.tables.query import Rows
from orchestrator.units import SPANS
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


def test_a_hook_that_costs_is_named_with_its_event_and_costliest_rank() -> None:
    """200 iterations of 0.1 s are 20 s on each rank; rank 1 pays 2 s of them, 10 ms a call."""
    ledger = costs(
        (0, "plots", "on_step", 200, 1.0),
        (1, "plots", "on_step", 200, 2.0),
        (1, "ema", "on_update", 200, 0.1),
    )
    (finding,) = find_costly_hooks(asked(training(2))[1], ledger)
    assert [finding.kind, *map(finding.numbers.get, ("hook", "event", "rank"))] == [
        "hook",
        "plots",
        "on_step",
        1,
    ]
    assert finding.weight == pytest.approx(2 / 20, rel=0.02)
    assert finding.numbers["seconds_by_rank"] == {0: 1.0, 1: 2.0}
    assert "(200 calls, 10 ms each)" in finding.sentence


def test_the_every_that_takes_one_percent_is_proposed() -> None:
    """2 s of 20 s are 10 %, so ten times as rare. `ends` acts beside the iterations and `bare` has
    no `every`."""
    ledger = costs(
        (0, "layers", "on_forward", 20, 2.0),
        (0, "ends", "on_phase_end", 2, 2.0),
        (0, "bare", "on_step", 9, 2.0),
    ).assign(every=["100 steps", "1 epochs", None])
    advice = {
        finding.numbers["hook"]: finding.advice
        for finding in find_costly_hooks(asked(training(1))[1], ledger)
    }
    number = int(re.search(r"hooks.layers.every=(\d+) steps", advice["layers"])[1])  # type: ignore[index]  # the test
    assert number == pytest.approx(1000, rel=0.02)
    assert all("every" not in advice[hook] for hook in ("ends", "bare"))


def test_saving_between_phases_is_told_as_a_checkpoint() -> None:
    (finding,) = find_costly_hooks(asked(training(1))[1], costs((0, "(loop)", "save", 4, 6.0)))
    assert finding.kind == "checkpoint"
    assert finding.sentence.startswith("saving checkpoints between phases took 6 s, ")


def test_rank_is_named_only_beside_others() -> None:
    """The hook runs on rank 0, alone or beside a second rank."""
    ledger = costs((0, "ema", "on_update", 200, 6.0))
    alone, beside = (
        next(find_costly_hooks(asked(training(ranks))[1], ledger)).sentence for ranks in (1, 2)
    )
    assert "rank" not in alone
    assert beside.startswith("ema (on_update) took 6 s on rank 0, ")


def test_the_share_of_a_hook_between_iterations_is_of_all_time() -> None:
    """20 s of iterations, 60 s of saving and 20 s of validation hooks: 60 % and 20 %."""
    ledger = costs((0, "(loop)", "save", 4, 60.0), (0, "report", "on_report", 1, 20.0))
    findings = find_costly_hooks(asked(training(1))[1], ledger)
    shares = {finding.numbers["event"]: finding.weight for finding in findings}
    assert shares == pytest.approx({"save": 0.6, "on_report": 0.2}, rel=0.02)


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
