"""Matrices, such as the confusion matrix of a meter, as tables of HTML."""

from collections.abc import Iterator

import pandas as pd

from hooks.matrix import compute_shares, format_number
from orchestrator.report.markup import Markup, element


def render_matrix(matrix: pd.DataFrame) -> Markup:
    """Render a matrix as a table, whose cells are as dark as their share of the largest in their
    row."""
    head = [element("th", str(name), scope="col") for name in matrix.columns]
    table = element(
        "table",
        element("caption", _make_caption(matrix)),
        element("thead", element("tr", element("td"), *head)),
        element("tbody", *_make_rows(matrix)),
        class_="matrix",
    )
    return element("div", table, class_="scroll")


def _make_caption(matrix: pd.DataFrame) -> str:
    caption = "Colors are shares of the largest value in the row."
    kind_of_rows, _, kind_of_columns = str(matrix.index.name or "").partition(" / ")
    if not kind_of_columns:
        return caption
    return f"Rows: {kind_of_rows}. Columns: {kind_of_columns}. {caption}"


def _make_rows(matrix: pd.DataFrame) -> Iterator[Markup]:
    values = matrix.to_numpy()
    for label, row, shares in zip(matrix.index, values, compute_shares(matrix), strict=True):
        cells = map(_make_cell, row, shares)
        yield element("tr", element("th", str(label), scope="row"), *cells)


def _make_cell(value: float, share: float) -> Markup:
    return element("td", format_number(value), style=f"--share:{share:.0%}")
