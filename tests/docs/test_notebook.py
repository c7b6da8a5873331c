"""The notebook with charts from the tables of a run."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest

from tests.docs.runner import ROOT


def execute(notebook: Path) -> dict[str, Any]:
    """Execute every code cell, and return what they define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)
    return names


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were shown."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figures: list[Any] = []
    monkeypatch.setattr(plt, "show", lambda: (figures.append(plt.gcf()), plt.close()))
    return figures


def test_notebook_draws_what_it_says(drawn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    monkeypatch.chdir(ROOT)
    names = execute(ROOT / "docs" / "guides" / "analyze.ipynb")
    assert [bool(figure.axes) for figure in drawn] == [True] * 4
    assert names["finding"].numbers["rank"] == 5
    assert names["finding"].numbers["span"] == "data_wait_s"
    assert names["own_s"].sub(names["own_s"].median()).loc[5].to_numpy() == pytest.approx(
        names["late_s"]
    )
    assert sorted(names["trials"]["config/optimizer.lr"]) == [0.01, 0.1, 0.5]
    training = names["done"].stats.query("phase == 'train'").groupby("epoch")
    expected = pd.DataFrame(
        {"step_s": training["step_s"].median(), "loss": training["loss"].mean()}
    ).reset_index()
    for found in (names["by_duckdb"], names["by_polars"].to_pandas()):
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
