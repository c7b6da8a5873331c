"""The page of a report. As a file, it is one document, which loads nothing and runs no scripts but
its own."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from orchestrator.disk.metadata import RunMetadata
from orchestrator.report.markup import Content, Markup, Quantity, concatenate, element, make_cell

CHARTS = "plotly-cartesian.min.js"
"""plotly.js with the charts of two axes alone, a third of the whole: npm's package
plotly.js-cartesian-dist-min."""
SCRIPT = "script.js"
STYLE = "style.css"


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    content: str
    """Markup, or a text if there is nothing to show."""
    note: str = ""
    """Text below the heading."""

    def render(self) -> Markup:
        heading = element("h2", self.title, id=f"{self.id}-title")
        note = element("p", self.note, class_="note") if self.note else None
        content = self.content if isinstance(self.content, Markup) else make_note(self.content)
        return element(
            "section", heading, note, content, id=self.id, aria_labelledby=f"{self.id}-title"
        )


@dataclass(frozen=True)
class Page:
    """The content of a page."""

    name: str
    header: Content
    """Content before the sections."""
    sections: Sequence[Section]

    def render(
        self,
        head: Sequence[Content],
        footer: str,
        scripts: Sequence[Content],
        *,
        links: Sequence[Content] = (),
        **attributes: str | float | None,
    ) -> str:
        """Make the document. `links` come before those to the sections, and `attributes` are of its
        body."""
        to_sections = [
            element("a", section.title, href=f"#{section.id}") for section in self.sections
        ]
        all_of_head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{self.name} - Hookyard"),
            *head,
        )
        body = element(
            "body",
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("nav", *links, *to_sections, aria_label="Sections"),
            element(
                "main",
                element("header", self.header),
                *(section.render() for section in self.sections),
                id="content",
            ),
            element("footer", footer),
            *scripts,
            **attributes,
        )
        return f"<!DOCTYPE html>\n{element('html', all_of_head, body, lang='en')}\n"


def make_file(page: Page, path: str, made: str) -> str:
    """Make a document that loads nothing. `made` is the time of creation."""
    scripts = [read_resource(CHARTS), read_resource(SCRIPT)]
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Allows only these scripts, and no loading.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
    )
    head = [
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("style", Markup(read_resource(STYLE))),
    ]
    footer = f"Made by hookyard report at {made} from {path}."
    return page.render(head, footer, [element("script", Markup(script)) for script in scripts])


def make_note(text: str) -> Markup:
    return element("p", text, class_="nothing")


@dataclass(frozen=True)
class Tile:
    """A number in the headline."""

    title: str
    value: Quantity | Markup
    note: str = ""

    def render(self) -> Markup:
        shown, exact = make_cell("", self.value)
        note = element("small", self.note) if self.note else None
        return element("div", element("dt", self.title), element("dd", shown, note, title=exact))


def make_headline(name: str, status: str, run: RunMetadata, entries: Sequence[Tile]) -> Markup:
    """Make the headline of a page: name, status, tags, notes and error of a run, a few numbers, and
    its wall time."""
    wall = Quantity("wall_s", run.wall_s)
    tiles = (
        [*entries, Tile("wall time", wall, "from start to end")]
        if run.wall_s is not None
        else entries
    )
    pieces = [
        element("h1", name, " ", make_status_badge(status)),
        element("p", make_tags(run.tags)) if run.tags else None,
        element("p", run.notes, class_="notes") if run.notes else None,
        element("p", f"Stopped: {'; '.join(run.stopped)}") if run.stopped else None,
        element("pre", run.error, class_="failed", tabindex=0, aria_label="Error")
        if run.error
        else None,
        element("dl", *(tile.render() for tile in tiles), class_="tiles"),
    ]
    return concatenate(pieces)


def make_status_badge(word: str) -> Markup:
    return element("span", word, class_=f"status {word}")


def make_tags(tags: Sequence[str]) -> Markup:
    return concatenate(element("span", tag, class_="tag") for tag in tags)


def make_details(summary: str, text: str, *, is_open: bool = False) -> Markup:
    """Make a text that can be expanded below its summary."""
    return element(
        "details", element("summary", summary), element("pre", text, tabindex=0), open=is_open
    )


def read_resource(name: str) -> str:
    """Return the text of a script or a style sheet."""
    return resources.files("orchestrator.report").joinpath(name).read_text()
