"""A console of rich that writes control characters out where what is drawn quotes a stored run."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.terminal.printable import printable


class PrintableConsole(Console):
    """As rich's, whose own control codes stay what they are."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is drawn, as printable text; cells of a table pass here before their place is reckoned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
