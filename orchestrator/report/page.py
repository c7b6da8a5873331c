"""The page of a report: a header and sections."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.markup import Content, Markup, element


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
        """Make the section's HTML."""
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
        """Make the document.

        Args:
            head: Content of the head, after the title.
            footer: Text below the sections.
            scripts: Elements at the end of the body.
            links: Links before those to the sections.
            attributes: Attributes of the body.
        """
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


def make_note(text: str) -> Markup:
    """Make a text that says why something is not shown."""
    return element("p", text, class_="nothing")


def make_details(summary: str, text: str, *, is_open: bool = False) -> Markup:
    """Make a text that can be expanded below its summary."""
    return element(
        "details", element("summary", summary), element("pre", text, tabindex=0), open=is_open
    )
