"""Stacked bars of the spans of an iteration."""

import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.charts.axes import make_value_axis
from orchestrator.report.charts.chart import COLORS, GREY, draw_chart
from orchestrator.report.markup import Markup

SPAN_COLORS = {
    "data_wait_s": COLORS[1],
    "to_device_s": COLORS[6],
    "forward_s": COLORS[0],
    "loss_s": COLORS[7],
    "optimizer_s": COLORS[2],
    "hooks_s": COLORS[3],
    "checkpoint_s": COLORS[4],
    "other_s": COLORS[8],
    "backward_s": COLORS[5],
    "all_reduce_wait_s": GREY,
}
"""Color of each span, in the order in which bars stack them: the backward pass and the wait come
last."""


def draw_stacks(title: str, spans: pd.DataFrame, name: str, note: str = "") -> Markup:
    """Draw a stacked bar of the spans in each row of a table. `name` is the label of the axis."""
    totals = spans.clip(lower=0).sum(axis=1).to_numpy()
    size, axis = make_value_axis("total_s", totals, from_zero=True)
    figure = go.Figure(
        layout={
            "barmode": "stack",
            "yaxis": axis,
            "xaxis": {"type": "category", "title": {"text": name}, "nticks": 12},
            "hovermode": "x unified",
            "legend": {"traceorder": "normal"},
        }
    )
    labels = [str(label) for label in spans.index]
    for column in map(str, spans.columns):
        color = {"color": SPAN_COLORS[column], "line": {"width": 0}}
        figure.add_bar(
            x=labels, y=spans[column].to_numpy(dtype=float) / size, name=column, marker=color
        )
    return draw_chart(title, figure, note, height=380, wide=True)
