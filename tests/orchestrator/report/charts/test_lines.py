from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.report.binning import envelope
from orchestrator.report.charts.lines import Line, curves, line_of, lines
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import exact_of, parsed, tables_of


def test_the_table_has_every_point_of_every_line() -> None:
    made = lines("loss", "loss", [Line("train", [1, 2], [4.0, 3.0]), Line("val", [2], [5.0])], "step")
    assert tables_of(made)["loss"] == [["step", "train", "val"], ["1", "4", ""], ["2", "3", "5"]]


def test_a_band_is_in_the_table_too_in_the_column_s_unit() -> None:
    made = lines(
        "time",
        "step_s",
        [
            line_of(
                "all",
                envelope(Rows.of(pd.DataFrame({"step": [1, 1, 2], "value": [0.25, 0.75, 0.5]})), "step", "value", 9),
            )
        ],
        "iteration",
    )
    assert tables_of(made)["time"] == [
        ["iteration", "all, smallest", "all", "all, largest"],
        ["1", "250 ms", "500 ms", "750 ms"],
        ["2", "500 ms", "500 ms", "500 ms"],
    ]
    assert exact_of(made, "time")[0] == ["1", "0.25 s", "0.5 s", "0.75 s"]


def test_lines_are_drawn_between_the_ends_of_their_axes() -> None:
    tree = parsed(lines("loss", "loss", [Line("a", [1, 3], [2.0, 4.0]), Line("b", [2], [3.0], kind=1)], "step"))
    drawn = [path.get("d") for path in tree.iter("path") if path.get("class") in ("line", "dots")]
    assert drawn == ["M0,1000L2000,0", "M1000,500", "M1000,500h0"]
    plot = next(one for one in tree.iter("div") if one.get("class") == "plot")
    assert (plot.get("data-low"), plot.get("data-high"), plot.get("tabindex")) == ("1.0", "3.0", "0")


def test_what_is_not_finite_is_a_gap() -> None:
    tree = parsed(lines("loss", "loss", [Line("a", [1, 2, 3], [2.0, float("inf"), 4.0])], "step"))
    assert [path.get("d") for path in tree.iter("path") if path.get("class") == "line"] == ["M0,1000M2000,0"]


def test_curves_can_be_picked_and_the_best_lies_above() -> None:
    made = curves(
        "accuracy",
        "accuracy",
        [Line("a", [1, 2], np.array([0.5, 0.75]), trial="a"), Line("b", [1], np.array([0.25]), trial="b")],
        "step",
    )
    assert [one.get("data-trial") for one in parsed(made).iter("g")] == ["b", "a"]
    assert tables_of(made)["accuracy"][1:] == [["a", "2", "0.5", "0.75", "0.75"], ["b", "1", "0.25", "0.25", "0.25"]]
