import re

import numpy as np
import pandas as pd

from orchestrator.report.charts.curves import draw_curves
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.charts.parallel_coordinates import draw_parallel_coordinates
from orchestrator.report.charts.scatter import draw_scatter
from orchestrator.report.charts.stacks import draw_stacks
from tests.orchestrator.report.reading import charts_of, lines_of

HOSTILE = "<img src=x onerror=alert(1)></script><b>&lt;</b><a href='https://x.y'>"
STEPS = np.array([1.0, 2.0, 3.0])


def test_user_text_is_escaped_in_charts() -> None:
    spans = pd.DataFrame({"forward_s": [1.0]}, index=[HOSTILE])
    trials = pd.DataFrame({HOSTILE: [HOSTILE, "b"], "y": [1.0, 2.0]}, index=[HOSTILE, "t"])
    markup = [
        draw_lines(HOSTILE, HOSTILE, [Line(HOSTILE, STEPS, STEPS)], HOSTILE, HOSTILE),
        draw_curves(HOSTILE, HOSTILE, {HOSTILE: (STEPS, STEPS)}, HOSTILE),
        draw_stacks(HOSTILE, spans, HOSTILE),
        draw_scatter(
            HOSTILE, pd.DataFrame({HOSTILE: [1.0], "y": [2.0]}, index=[HOSTILE]), [HOSTILE]
        ),
        draw_parallel_coordinates(HOSTILE, trials, HOSTILE),
    ]
    for drawn in markup:
        assert not re.search("<(img|b>&|a )", drawn.replace("<b>&lt;img", ""))
        assert drawn.count("</script>") == 1
        data = drawn.split('type="application/json">')[1]
        assert "&lt;img src=x" in data  # Plotly decodes it, and formats no tag of it.
        assert not re.search(r"\\u003c(?!br>|extra>|/extra>)", data)
    assert HOSTILE in lines_of(charts_of(markup[0])[HOSTILE])
