from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import Run, Sweep
from orchestrator.runs.result_html import render_result
from tests.orchestrator.runs.written import written_run
from tests.orchestrator.terminal.test_sweep_status import trial, written_sweep


def table_of(html: str) -> pd.DataFrame:
    """The table of an HTML, its names as they are read."""
    from xml.etree import ElementTree

    rows = ElementTree.fromstring(
        html[html.index("<table") : html.index("</table>") + len("</table>")]
    ).iter("tr")
    cells: list[list[Any]] = [[cell.text for cell in row] for row in rows]
    return pd.DataFrame(cells[1:], columns=cells[0])


def test_result_html_is_escaped() -> None:
    table = pd.DataFrame({"<b>x</b>": ["<script>"]}, index=["<i>"])
    html = render_result("runs/<u>", "<em>", ["<a>", None, ""], table)
    assert not [part for part in ("<script>", "<b>x", "<i>", "<u>", "<em>", "<a>") if part in html]
    assert "runs/&lt;u&gt;" in html


def test_run_html_has_status_best_and_reports(tmp_path: Path) -> None:
    folder = written_run(tmp_path, hooks={"checkpoint": {"best": "val/accuracy", "mode": "max"}})
    for epoch in range(12):
        folder.append_report(
            {
                "attempt": 0,
                "epoch": epoch,
                "step": epoch,
                "iteration": epoch,
                "val/accuracy": 0.5 - epoch / 100,
                "train/samples_per_s": 5.0,
                "perf/step_s": 1.0,
            }
        )
    folder.run_file.end("failed", error="rank 0: <b>bang</b>")
    html = Run(folder)._repr_html_()
    table = table_of(html)
    assert [*table.columns[1:]] == ["epoch", "step", "val/accuracy"]
    assert table["epoch"].tolist() == [str(epoch) for epoch in range(4, 12)]
    assert f"<b>{tmp_path}/points</b>&ensp;failed" in html
    assert "best val/accuracy 0.5" in html
    assert "rank 0: &lt;b&gt;bang&lt;/b&gt;" in html


@pytest.mark.parametrize(
    ("mode", "order"),
    [
        ("max", ["trial-0001", "trial-0000", "trial-0002"]),
        ("min", ["trial-0000", "trial-0001", "trial-0002"]),
    ],
)
def test_sweep_html_lists_trials_best_first(tmp_path: Path, mode: str, order: list[str]) -> None:
    folder = written_sweep(tmp_path, mode)
    trial(folder, 0, 0.25)
    trial(folder, 1, 0.5)
    trial(folder, 2)
    html = Sweep(folder)._repr_html_()
    assert table_of(html).iloc[:, 0].tolist()[1:] == order
    assert "3 running" in html
