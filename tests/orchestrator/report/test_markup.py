from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report.markup import Markup, concatenate, element

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
