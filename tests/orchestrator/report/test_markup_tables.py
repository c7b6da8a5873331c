from __future__ import annotations

import numpy as np

from orchestrator.report.markup import Quantity, Share, element, format_exactly, make_facts_table, make_table
from tests.orchestrator.report.reading import parsed, tables_of, text_of


def test_cells_have_units_and_exact_titles() -> None:
    made = make_table("times", ("rank", "step_s"), [(0, 0.0123456), (1, None)])
    assert tables_of(made) == {"times": [["rank", "step_s"], ["0", "12.3 ms"], ["1", ""]]}
    titles = [[cell.get("title") for cell in row] for row in parsed(made).iter("tr")]
    assert titles[1:] == [["0", "0.0123456 s"], ["1", None]]


def test_rows_have_a_head_and_columns_of_numbers_are_marked() -> None:
    tree = parsed(make_table("x", ("name", "count", "word"), [("a", 1, "b")], headings={"count": "how many"}))
    assert [(head.get("scope"), head.get("class"), text_of(head)) for head in tree.iter("th")] == [
        ("col", None, "name"),
        ("col", "numbers", "how many"),
        ("col", None, "word"),
        ("row", None, "a"),
    ]


def test_a_share_has_a_bar_and_its_number() -> None:
    tree = parsed(make_table("x", ("name", "share"), [("a", Share(0.25)), ("b", Share(1.7))]))
    assert [bar.get("style") for bar in tree.iter("span")] == ["width:25.00%", "width:100.00%"]
    assert [text_of(cell) for cell in tree.iter("td")] == ["25.0%", "170.0%"]


def test_cell_may_be_a_quantity_or_markup() -> None:
    made = make_table(
        "x", ("name", "value"), [("a", Quantity("rss_bytes", 2**20)), ("b", element("a", "link", href="#b"))]
    )
    assert tables_of(made)["x"][1:] == [["a", "1 MiB"], ["b", "link"]]
    assert next(parsed(made).iter("a")).get("href") == "#b"


def test_facts_omit_unknown_values() -> None:
    assert tables_of(make_facts_table("x", {"step_s": 2.0, "seed": None, "host": "vm"}))["x"][1:] == [
        ["step_s", "2 s"],
        ["host", "vm"],
    ]


def test_exact_values_keep_all_digits() -> None:
    assert format_exactly("step_s", 0.1 + 0.2) == "0.30000000000000004 s"
    assert format_exactly("loss", np.float64(1) / 3) == repr(1 / 3)
    assert format_exactly("rank", np.int64(7)) == "7"
    assert [format_exactly("x", value) for value in ("text", None, float("nan"), True)] == [None] * 4
