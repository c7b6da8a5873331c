from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report.binning import compute_envelope, compute_max_per_bin, group_neighbors
from orchestrator.tables import row_blocks
from orchestrator.tables.query import Rows


def rows_of(**columns: Any) -> Rows:
    return Rows.wrap(pd.DataFrame(columns))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(-1e6, 1e6)), min_size=1, max_size=80),
    st.integers(1, 10),
)
def test_an_envelope_keeps_every_extreme(points: list[tuple[int, float]], bins: int) -> None:
    at, values = (np.array(part, dtype=float) for part in zip(*points, strict=True))
    found = compute_envelope(rows_of(step=at.astype(int), value=values), "step", "value", bins)
    assert len(found.index) <= bins
    assert (found["low"].min(), found["high"].max()) == (values.min(), values.max())
    bin_of = np.searchsorted(found.index, at)
    table = pd.DataFrame({"bin": bin_of, "value": values}).groupby("bin")["value"]
    assert found["low"].tolist() == table.min().tolist()
    assert found["high"].tolist() == table.max().tolist()
    assert found["mean"].tolist() == pytest.approx(table.mean().tolist())


def test_envelope_ignores_values_that_are_not_finite() -> None:
    found = compute_envelope(
        rows_of(step=[1, 2, 3], value=[1.0, float("nan"), float("inf")]), "step", "value", 10
    )
    assert (found.index.tolist(), found["known"].sum()) == ([1], 1)
    nothing = compute_envelope(rows_of(step=[1], value=[float("nan")]), "step", "value", 10)
    assert (len(nothing), nothing["known"].sum()) == (0, 0)


def test_envelope_of_a_long_run_uses_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight places of which two are a block each, in two bins."""
    monkeypatch.setattr(row_blocks, "MAX_ROWS_AS_BLOCKS", 0)
    monkeypatch.setattr(row_blocks, "MAX_STORED_NUMBERS", 16)
    rows = rows_of(rank=[0] * 8, iteration=range(8), value=np.arange(8.0))
    found = compute_envelope(rows, "iteration", "value", 2)
    assert found[["low", "mean", "high"]].T.to_dict("list") == {3: [0, 1.5, 3], 7: [4, 5.5, 7]}
    grid = compute_max_per_bin(rows, ["value"], 9, 2)["value"]
    assert grid.values.tolist() == [[3, 7]]
    assert [*zip(grid.columns.left, grid.columns.right, strict=True)] == [(0, 3), (4, 7)]


def test_groups_have_nearly_equal_sizes() -> None:
    assert group_neighbors(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert group_neighbors(2, 5).tolist() == [0, 1]
    assert set(np.bincount(group_neighbors(1000, 96))) == {10, 11}


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 100)
)
def test_heat_map_cell_is_the_maximum_of_its_group(
    ranks: int, iterations: int, down: int, across: int, seed: int
) -> None:
    table = pd.DataFrame(
        {
            "rank": np.tile(np.arange(ranks), iterations) + 3,
            "iteration": np.repeat(np.arange(iterations), ranks) + 7,
            "value": np.random.default_rng(seed).random(ranks * iterations),
        }
    )
    grid = compute_max_per_bin(Rows.wrap(table), ["value"], down, across)["value"]
    assert (grid.values.shape <= np.array([down, across])).all()
    for groups, name in ((grid.index, "rank"), (grid.columns, "iteration")):
        positions = [
            position for group in groups for position in range(group.left, group.right + 1)
        ]
        assert sorted(positions) == [*table[name].unique()]
        assert len({*groups.length[:-1]}) <= 1
    for ranks_of_row, row in grid.iterrows():
        for part, value in row.items():
            cell = table[
                [
                    rank in ranks_of_row and at in part
                    for rank, at in zip(*table[["rank", "iteration"]].to_numpy().T, strict=True)
                ]
            ]
            assert value == cell["value"].max()


def test_a_cell_without_a_value_is_empty() -> None:
    grid = compute_max_per_bin(
        rows_of(rank=[0, 1], iteration=[1, 2], value=[1.0, 2.0]), ["value"], 9, 9
    )["value"]
    assert grid.isna().to_numpy().tolist() == [[False, True], [True, False]]
