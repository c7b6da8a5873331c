"""The headline of a page: name, status and a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.disk.metadata import RunMetadata
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.tables import Quantity, make_cell


@dataclass(frozen=True)
class Tile:
    """A number in the headline."""

    title: str
    value: Quantity | Markup
    note: str = ""

    def render(self) -> Markup:
        """Make the tile's HTML."""
        shown, exact = make_cell("", self.value)
        note = element("small", self.note) if self.note else None
        return element("div", element("dt", self.title), element("dd", shown, note, title=exact))


def make_headline(name: str, status: str, run: RunMetadata, entries: Sequence[Tile]) -> Markup:
    """Make the headline of a page: name, status, tags, notes and error of a run, a few numbers, and
    its wall time."""
    pieces = [element("h1", name, " ", make_status_badge(status))]
    if run.tags:
        pieces.append(element("p", make_tags(run.tags)))
    if run.notes:
        pieces.append(element("p", run.notes, class_="notes"))
    if run.stopped:
        pieces.append(element("p", f"Stopped: {'; '.join(run.stopped)}"))
    if run.error:
        error = element("pre", run.error, class_="failed", tabindex=0, aria_label="Error")
        pieces.append(error)

    tiles = [*entries]
    if run.wall_s is not None:
        wall = Quantity("wall_s", run.wall_s)
        tiles.append(Tile("wall time", wall, "from start to end"))
    pieces.append(element("dl", *(tile.render() for tile in tiles), class_="tiles"))
    return concatenate(pieces)


def make_status_badge(word: str) -> Markup:
    """Make a status in its color."""
    return element("span", word, class_=f"status {word}")


def make_tags(tags: Sequence[str]) -> Markup:
    return concatenate(element("span", tag, class_="tag") for tag in tags)
