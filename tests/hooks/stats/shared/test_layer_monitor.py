"""Values by layer: what is read back with pandas, and what a resumed run drops."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from hooks import State
from hooks.stats.shared.layer_monitor import LayerMonitor


class Sizes(LayerMonitor):
    folder = "sizes"

    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        pass

    def read(self, state: State) -> None:
        pass


def started(state: State) -> Sizes:
    hook = Sizes()
    hook.on_start(state)
    return hook


def _read(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "sizes")


def test_pandas_reads_a_row_for_each_measurement_and_layer_of_all_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        state = State(artifacts=tmp_path, rank=rank, epoch=2, iteration=6)
        table = started(state)
        table.keep(
            state,
            ["a", "b"],
            {"mean": torch.tensor([1.0, 2.0]), "most": torch.tensor([3.0, 4.0 + rank])},
        )
        state.iteration = 7
        table.keep(state, ["b"], {"mean": torch.tensor([0.5])})
        table.close()
    table_of_all = _read(tmp_path)
    assert (
        table_of_all[["epoch", "iteration", "layer", "mean"]].values.tolist()
        == [[2, 7, "a", 1.0], [2, 7, "b", 2.0], [2, 8, "b", 0.5]] * 2
    )
    assert table_of_all["rank"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table_of_all["most"].tolist() == pytest.approx(
        [3, 4, float("nan"), 3, 5, float("nan")], nan_ok=True
    )


def test_rows_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    state = State(artifacts=tmp_path)
    table = started(state)
    for iteration in range(6):
        state.iteration = iteration
        table.keep(state, ["a"], {"mean": torch.tensor([float(iteration)])})
        if iteration in (1, 3, 5):
            table.close()
    resumed = State(artifacts=tmp_path, iteration=4)
    started(resumed)
    assert _read(tmp_path)["iteration"].tolist() == [1, 2, 3, 4]


def test_rows_of_ranks_that_no_longer_exist_are_dropped(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        state = State(artifacts=tmp_path, rank=rank, world_size=3)
        table = started(state)
        for state.iteration in range(4):
            table.keep(state, ["a"], {"mean": torch.ones(1)})
            table.close()
    started(State(artifacts=tmp_path, rank=0, world_size=2, iteration=3))
    assert _read(tmp_path).groupby("rank", observed=True)["iteration"].max().to_dict() == {
        0: 3,
        1: 4,
        2: 3,
    }
