"""Costs of hooks, against sums by hand."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from hooks.position import Stage
from orchestrator.tables.hook_costs import sum_costs, summarize_hooks
from tests.orchestrator.tables.test_frames import FRESH, attempt, keys


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.concat_tables(
        [pa.Table.from_pylist([one]) for one in rows], promote_options="permissive"
    )


def cost(
    attempt: int,
    rank: int,
    hook: str,
    step: int,
    calls: int,
    seconds: float,
    stage: Stage = Stage.TRAIN,
) -> dict[str, Any]:
    place = {
        "rank": rank,
        "attempt": attempt,
        "epoch": 0,
        "iteration": step,
        "step": step,
        "stage": int(stage),
    }
    return {**place, "hook": hook, "event": "on_update", "calls": calls, "seconds": seconds}


def test_hook_costs_exclude_superseded_rows() -> None:
    rows = [
        cost(0, 0, "ema", 5, 5, 0.5),
        cost(0, 0, "ema", 9, 4, 0.5),  # past the second attempt's start
        cost(0, 0, "ema", 5, 7, 0.5, Stage.TRAINED),  # so is this validation
        cost(1, 0, "ema", 9, 4, 0.25),
        cost(0, 1, "ema", 5, 5, 2.0),
        cost(0, 1, "clip", 5, 5, 0.125),
    ]
    costs = sum_costs([table(rows[:3]), table(rows[3:])], [FRESH, attempt(1, 5, 5, Stage.TRAIN)])
    assert keys(costs, "rank", "hook", "calls", "seconds") == [
        (0, "ema", 9, 0.75),
        (1, "clip", 5, 0.125),
        (1, "ema", 5, 2.0),
    ]


def test_hook_costs_after_the_end_of_a_run_are_of_the_trials_that_go_on() -> None:
    """A leader stops at iteration 5, and its training continues for its followers."""
    rows = [cost(0, 0, "clip", 5, 5, 0.5), cost(0, 0, "clip", 90, 85, 8.5)]
    costs = sum_costs([table(rows)], [replace(FRESH, until=5)])
    assert keys(costs, "hook", "calls", "seconds") == [("clip", 5, 0.5)]


def test_without_costs_the_table_is_empty() -> None:
    assert len(sum_costs([], [])) == 0


def test_the_table_by_hook_is_the_costliest_first() -> None:
    costs = pd.DataFrame(
        {
            "rank": [0, 1, 1],
            "hook": ["ema", "clip", "ema"],
            "event": "on_update",
            "calls": [9, 5, 5],
            "seconds": [0.75, 0.125, 2.0],
        }
    )
    hooks = summarize_hooks(costs, 21.0)
    assert list(hooks.index) == [("ema", "on_update"), ("clip", "on_update")]
    # 14 calls in 2.75 s of 21 s in all
    assert hooks.loc[("ema", "on_update")].to_dict() == {
        "calls": 14,
        "seconds": 2.75,
        "share": pytest.approx(2.75 / 21),
        "microseconds_per_call": pytest.approx(2.75 / 14 * 1e6),
        "costliest_rank": 1,
    }


def test_the_table_by_hook_has_the_every_that_would_take_one_percent() -> None:
    """Shares of 30 %, 0.5 %, and events and hooks that have no pace within an iteration."""
    costs = pd.DataFrame(
        {
            "rank": 0,
            "hook": ["maps", "norms", "memory", "ema", "maps", "off"],
            "event": ["on_forward", "on_step", "on_step", "on_update", "on_phase_end", "on_step"],
            "calls": 1,
            "seconds": [30.0, 0.5, 2.0, 9.0, 9.0, 9.0],
            "every": ["100 steps", "10 steps", 10, None, "100 steps", 0],
        }
    )
    table = summarize_hooks(costs, 100.0)["every_for_1_percent"]
    assert {key: value for key, value in table.items() if value} == {
        ("maps", "on_forward"): "3000 steps",
        ("memory", "on_step"): "20",
    }
