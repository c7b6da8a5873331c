"""The page: one self-contained document that fetches nothing, and in which no text becomes a script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from plotly.offline import get_plotlyjs

from orchestrator.records.metadata import RunMetadata
from orchestrator.report.markup import Content, Markup, element, joined
from orchestrator.report.tables import Quantity, cell


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    content: str
    """Markup, or plain text if there is nothing to show."""
    note: str = ""
    """Sentence below the heading."""


def page(name: str, path: str, header: Content, sections: Sequence[Section], made: str) -> str:
    """Return the document. `header` comes before all sections; `made` is the time."""
    scripts = [get_plotlyjs(), _resource("script.js")]
    links = [element("a", section.title, href=f"#{section.id}") for section in sections]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("title", f"{name} - Hookyard"),
        element("style", Markup(_resource("style.css"))),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("nav", *links, aria_label="Sections"),
        element("main", element("header", header), *map(_section, sections), id="content"),
        element("footer", f"Made by hookyard report at {made} from {path}."),
        *(element("script", Markup(script)) for script in scripts),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    heading = element("h2", section.title, id=f"{section.id}-title")
    note = element("p", section.note, class_="note") if section.note else None
    content = section.content if isinstance(section.content, Markup) else empty_note(section.content)
    return element("section", heading, note, content, id=section.id, aria_labelledby=f"{section.id}-title")


def empty_note(words: str) -> Markup:
    return element("p", words, class_="nothing")


@dataclass(frozen=True)
class Tile:
    """A number of the headline."""

    title: str
    value: Quantity | Markup
    note: str = ""


def _tile(tile: Tile) -> Markup:
    shown, exact = cell("", tile.value)
    note = element("small", tile.note) if tile.note else None
    return element("div", element("dt", tile.title), element("dd", shown, note, title=exact))


def headline(name: str, how: str, run: RunMetadata, entries: Sequence[Tile]) -> Markup:
    """Return the name, status and error of a run, and a few numbers."""
    pieces = [
        element("h1", name, " ", status(how)),
        element("p", f"Stopped: {'; '.join(run.stopped)}") if run.stopped else None,
        failure("Error", run.error),
        element("dl", *map(_tile, entries), class_="tiles"),
    ]
    return joined(pieces)


def status(word: str) -> Markup:
    """Return a status as a badge."""
    return element("span", word, class_=f"status {word}")


def failure(label: str, words: object) -> Markup | None:
    return element("pre", str(words), class_="failed", tabindex=0, aria_label=label) if words else None


def preformatted(summary: str, text: str, *, opened: bool = False) -> Markup:
    """Return text that unfolds below a summary."""
    return element("details", element("summary", summary), element("pre", text, tabindex=0), open=opened)


def _policy(scripts: Sequence[str]) -> str:
    """Allow only these scripts, and no loading."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"


def _resource(name: str) -> str:
    return resources.files("orchestrator.report").joinpath(name).read_text()
