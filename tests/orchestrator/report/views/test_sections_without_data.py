import pandas as pd
import pytest

from orchestrator.report.markup import Markup
from orchestrator.report.views.coordinates import render_coordinates
from orchestrator.report.views.front import render_front
from orchestrator.report.views.importance import render_importance
from orchestrator.report.views.progress import render_progress
from orchestrator.report.views.spending import render_spending
from tests.orchestrator.report.views.swept import MAX, TRIALS


@pytest.mark.parametrize(
    "trials",
    [
        pd.DataFrame(),
        TRIALS.iloc[:1],
        TRIALS[["config/lr"]],
        TRIALS.assign(**{"val/accuracy": None, "step_s": None}),
    ],
)
def test_sections_without_data_are_explained(trials: pd.DataFrame) -> None:
    for section in (
        render_coordinates(trials, MAX, None),
        render_importance(trials, MAX),
        render_progress({}, MAX, 0, None),
        render_spending(pd.DataFrame()),
    ):
        assert not isinstance(section.content, Markup)
    if len(trials) != 1:
        assert not isinstance(render_front(trials, MAX).content, Markup)
