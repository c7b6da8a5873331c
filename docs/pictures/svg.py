"""A small writer of SVG figures, which take the colors of light and dark pages."""

from html import escape
from pathlib import Path

INK = "#24292f"
GREY = "#8c959f"
BLUE = "#0969da"
ORANGE = "#bc4c00"
GREEN = "#1a7f37"
PALE = "#d0d7de"
_MARGIN = 20
_DARK = {
    "rect": {"#ffffff": "#0d1117", "#eff2f5": "#21262d", "#0a3069": "#388bfd", INK: "#424a53"},
    "text": {INK: "#e6edf3", BLUE: "#58a6ff", ORANGE: "#f0883e", GREEN: "#3fb950"},
    "circle": {INK: "#e6edf3", BLUE: "#58a6ff", ORANGE: "#f0883e", GREEN: "#3fb950"},
}
"""Fills on dark pages, by shape and the fill on light ones. Text in boxes stays white."""
_DARK_LINES = {**_DARK["text"], PALE: "#3d444d"}


class Figure:
    """Shapes and text on a card, which is dark where the page is.

    As an image, an SVG file is told the color scheme of the page's element, so that it follows the
    switch of the docs' site and GitHub's setting.
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        """Begin a figure.

        Args:
            title: What the figure shows, for readers who do not see it.
            width: Width of the drawing in pixels, without the card's margin.
            height: Height of the drawing in pixels, without the card's margin.
        """
        self._title = title
        self._size = (width, height)
        self._shapes: list[str] = []

    def line(
        self,
        points: list[tuple[float, float]],
        color: str = INK,
        *,
        width: float = 1.5,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f' fill="none" stroke="{color}" stroke-width="{width}"'
        if dashed:
            style += ' stroke-dasharray="4 4"'
        if arrow:
            style += ' marker-end="url(#arrow)"'
        self._shapes.append(f'<polyline points="{path}"{style}/>')

    def box(
        self, x: float, y: float, width: float, height: float, color: str, text: str = ""
    ) -> None:
        """Draw a filled box with white text in its middle."""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"'
            f' fill="{color}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, "#ffffff", anchor="middle", size=12)

    def dot(self, x: float, y: float, color: str) -> None:
        """Draw a filled point."""
        self._shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')

    def cross(self, x: float, y: float, color: str) -> None:
        """Draw a cross, which marks an end."""
        self.line([(x - 4, y - 4), (x + 4, y + 4)], color, width=2)
        self.line([(x - 4, y + 4), (x + 4, y - 4)], color, width=2)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        color: str = INK,
        *,
        anchor: str = "start",
        size: int = 13,
    ) -> None:
        """Write text with its baseline at a point."""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}"'
            f' text-anchor="{anchor}">{escape(text)}</text>'
        )

    def write(self, path: Path) -> None:
        """Write the figure to a file."""
        width, height = self._size
        outer = (width + 2 * _MARGIN, height + 2 * _MARGIN)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {outer[0]} {outer[1]}"'
            f' width="{outer[0]}" height="{outer[1]}" font-family="sans-serif" role="img">',
            f"<title>{escape(self._title)}</title>",
            f"<style>@media (prefers-color-scheme: dark) {{{_write_dark_rules()}}}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/>'
            "</marker></defs>",
            f'<rect width="{outer[0]}" height="{outer[1]}" rx="8" fill="#ffffff" stroke="{PALE}"/>',
            f'<g transform="translate({_MARGIN},{_MARGIN})">',
            *self._shapes,
            "</g>",
            "</svg>",
        ]
        path.write_text("\n".join(lines) + "\n")


def _write_dark_rules() -> str:
    fills = [
        f'{shape}[fill="{light}"]{{fill:{dark}}}'
        for shape, colors in _DARK.items()
        for light, dark in colors.items()
    ]
    lines = [f'[stroke="{light}"]{{stroke:{dark}}}' for light, dark in _DARK_LINES.items()]
    return " ".join([*fills, *lines])
