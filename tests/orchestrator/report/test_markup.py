from html.parser import HTMLParser

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.tables import Quantity, Share, format_exactly, make_table
from tests.orchestrator.report.reading import parsed, tables_of, text_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


class Reader(HTMLParser):
    """What a browser would see: tags, attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_text_and_attributes_are_escaped(text: str, attribute: str) -> None:
    seen = Reader(element("p", text, title=attribute))
    assert (seen.tags, seen.text, seen.attributes) == (["p"], text, {"title": attribute})


def test_markup_is_not_escaped_again() -> None:
    inner = element("b", "1 < 2")
    assert element("p", inner, " & ", None) == "<p><b>1 &lt; 2</b> &amp; </p>"
    assert isinstance(concatenate([inner, "x"]), Markup)


def test_attributes() -> None:
    assert (
        element("th", "x", class_="a b", data_trial="t", hidden=True, open=False, id=None)
        == '<th class="a b" data-trial="t" hidden="">x</th>'
    )
    assert element("meta", charset="utf-8") == '<meta charset="utf-8"/>'


def test_cells_have_units_and_exact_titles() -> None:
    made = make_table("times", ("rank", "step_s"), [(0, 0.0123456), (1, None)])
    assert tables_of(made) == {"times": [["rank", "step_s"], ["0", "12.3 ms"], ["1", ""]]}
    titles = [[cell.get("title") for cell in row] for row in parsed(made).iter("tr")]
    assert titles[1:] == [["0", "0.0123456 s"], ["1", None]]


def test_rows_have_a_head_and_columns_of_numbers_are_marked() -> None:
    tree = parsed(
        make_table("x", ("name", "count", "word"), [("a", 1, "b")], headings={"count": "how many"})
    )
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
        "x",
        ("name", "value"),
        [("a", Quantity("rss_bytes", 2**20)), ("b", element("a", "link", href="#b"))],
    )
    assert tables_of(made)["x"][1:] == [["a", "1 MiB"], ["b", "link"]]
    assert next(parsed(made).iter("a")).get("href") == "#b"


def test_exact_values_keep_all_digits() -> None:
    assert format_exactly("step_s", 0.1 + 0.2) == "0.30000000000000004 s"
    assert format_exactly("loss", np.float64(1) / 3) == repr(1 / 3)
    assert format_exactly("rank", np.int64(7)) == "7"
    # parseFloat, by which script.js sorts, reads no `inf`
    assert format_exactly("loss", float("inf")) == "Infinity"
    assert format_exactly("step_s", np.float64("-inf")) == "-Infinity s"
    assert [format_exactly("x", value) for value in ("text", None, float("nan"), True)] == [
        None
    ] * 4
