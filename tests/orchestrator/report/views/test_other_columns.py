from orchestrator.report.views.other_columns import MAX_CHARTS, render_other_columns
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.report.reading import charts_of, lines_of


def test_a_column_that_no_other_view_shows_has_a_chart() -> None:
    charts = charts_of(
        render_other_columns(Rows.wrap(training(2, grad_norm=2.5, loss=1.0, rss_bytes=5.0))).content
    )
    assert [*charts] == ["grad_norm"]
    assert lines_of(charts["grad_norm"])["grad_norm"][1][0] == 2.5
    assert "No other column" in render_other_columns(Rows.wrap(training(2))).content


def test_columns_without_a_chart_are_named() -> None:
    content = str(
        render_other_columns(
            Rows.wrap(
                training(2, iterations=4, **{f"x{place}": 1.0 for place in range(MAX_CHARTS + 2)})
            )
        ).content
    )
    assert len(charts_of(content)) == MAX_CHARTS
    assert f"Without a chart: x{MAX_CHARTS}, x{MAX_CHARTS + 1}." in content
