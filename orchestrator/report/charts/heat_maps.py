"""Heat maps of seconds by ranks and iterations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.charts.axes import choose_unit
from orchestrator.report.charts.chart import draw_chart
from orchestrator.report.markup import Markup

COLOR_QUANTILE = 0.95
"""Quantile at which the colors of a heat map end; larger values have the same color."""


def draw_heat_maps(title: str, grids: Mapping[str, pd.DataFrame], note: str) -> Markup:
    """Draw heat maps of seconds by groups of ranks and iterations, with a menu to choose one."""
    figure = go.Figure()
    ranks, iterations = next(iter(grids.values())).axes
    rows = _name_groups(ranks)
    columns = _name_groups(iterations)
    buttons = []
    for index, (name, grid) in enumerate(grids.items()):
        top = float(np.nanquantile(grid, COLOR_QUANTILE))
        unit, size = choose_unit("s", top)
        figure.add_heatmap(
            z=(grid / size).to_numpy(np.float32),
            x=columns,
            y=rows,
            name=name,
            zmin=0,
            zmax=top / size,
            colorscale="Viridis",
            colorbar={"ticksuffix": f" {unit}", "thickness": 12},
            hovertemplate=f"rank %{{y}}, iteration %{{x}}<br>%{{z:.4~g}} {unit}<extra></extra>",
            visible=index == 0,
        )
        visible = [other == name for other in grids]
        buttons.append({"label": name, "method": "restyle", "args": [{"visible": visible}]})

    menu = {
        "buttons": buttons,
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "showactive": False,
    }
    figure.update_layout(updatemenus=[menu], margin={"t": 40})
    figure.update_xaxes(type="category", title_text="iteration", nticks=8)
    figure.update_yaxes(type="category", title_text="rank", nticks=8, autorange="reversed")
    return draw_chart(title, figure, note, height=min(480, 160 + 24 * len(rows)), wide=True)


def _name_groups(groups: Any) -> list[str]:
    names = []
    for group in groups:
        name = str(group.left)
        if group.left != group.right:
            name += f"-{group.right}"
        names.append(name)
    return names
