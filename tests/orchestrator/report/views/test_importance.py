from orchestrator.report.views.importance import render_importance
from orchestrator.sweeps.results.importance import make_importance_table
from tests.orchestrator.report.reading import tables_of
from tests.orchestrator.report.views.swept import MAX, TRIALS


def test_importance_matches_the_sweeps() -> None:
    table = tables_of(render_importance(TRIALS, MAX).content)["Importance for val/accuracy"]
    expected = make_importance_table(TRIALS, "val/accuracy")
    assert table == [
        ["parameter", "importance", "std. error"],
        *([name, f"{share:.1%}", f"{spread:.1%}"] for name, share, spread in expected.itertuples()),
    ]
    few = render_importance(TRIALS.iloc[:9], MAX)
    assert "Needs 10 trials with val/accuracy; there are 9 so far." in few.content
    one = render_importance(TRIALS.iloc[:1], MAX)
    assert "Needs 10 trials with val/accuracy; there is 1 so far." in one.content
