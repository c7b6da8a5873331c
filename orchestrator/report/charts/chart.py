"""Charts: plotly figures in the page's style, which CSS adapts to light and dark themes."""

import json
from html import escape
from typing import Any

import plotly.graph_objects as go

from orchestrator.report.markup import Markup, element

COLORS = (
    "#3965b2",
    "#f06b10",
    "#1f7530",
    "#703df2",
    "#ef0d42",
    "#5899cf",
    "#9b9474",
    "#766ff2",
    "#5d648b",
)
"""Colors of categories: they contrast with the page in both themes, and color-blind readers can
tell them apart."""
GREY = "#808890"
"""Color of the background: all ranks, dominated trials."""
_AXIS = {"automargin": True, "showline": False, "zeroline": False, "title": {"standoff": 8}}

_TEMPLATE = go.layout.Template(
    layout={
        "colorway": COLORS,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {
            "bgcolor": "#1b1f26",
            "bordercolor": "#1b1f26",
            "font": {"color": "#ffffff"},
            "namelength": -1,
        },
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": GREY},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def draw_chart(
    title: str,
    figure: go.Figure,
    note: str = "",
    *,
    height: int = 300,
    wide: bool = False,
    min_width: int = 0,
) -> Markup:
    """Make the HTML of a figure.

    Args:
        title: Title above the figure.
        figure: The figure, which gets the page's style.
        note: How to read it.
        height: Height in pixels.
        wide: True for the width of the page, False for one of several columns.
        min_width: Width in pixels below which it scrolls.
    """
    figure.update_layout(template=_TEMPLATE, height=height)
    plot = element(
        "div",
        class_="plot",
        role="img",
        aria_label=title,
        style=f"height:{height}px;min-width:{min_width}px",
    )
    # An escaped `<` cannot end the script element.
    content = json.dumps(_escape(json.loads(figure.to_json()))).replace("<", "\\u003c")
    data = element("script", Markup(content), type="application/json")
    note_element = element("span", note, class_="note") if note else None
    return element(
        "figure",
        element("figcaption", element("b", title), note_element),
        element("div", plot, data, class_="scroll"),
        class_="wide" if wide else None,
    )


def _escape(value: Any, key: str = "") -> Any:
    """Escape the texts of a figure, because plotly interprets some tags as formatting and links."""
    if isinstance(value, dict):
        return {name: _escape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escape(inner, key) for inner in value]
    if isinstance(value, str) and key != "hovertemplate":
        return escape(value, quote=False)
    return value
