from __future__ import annotations

from orchestrator.report.views.recorded import MOST, recorded
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import tables_of
from tests.orchestrator.stats.insight.runs import training


def test_what_no_other_view_shows_has_a_chart() -> None:
    tables = tables_of(recorded(Rows.of(training(2, grad_norm=2.5, loss=1.0, rss_bytes=5.0))).content)
    assert set(tables) == {"grad_norm"}
    assert tables["grad_norm"][1][1:] == ["2.5"] * 3


def test_of_very_many_columns_the_last_are_named() -> None:
    content = str(
        recorded(Rows.of(training(2, iterations=4, **{f"x{place}": 1.0 for place in range(MOST + 2)}))).content
    )
    assert len(tables_of(content)) == MOST
    assert f"Without a chart: x{MOST}, x{MOST + 1}." in content


def test_nothing_else_is_said() -> None:
    assert "No other column" in str(recorded(Rows.of(training(2))).content)
