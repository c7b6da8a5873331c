"""Parts of frames: a heading, a bar, a table, and the style of each status."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.units import format_rough_duration

STYLES = {
    "running": "bold",
    "finished": "green",
    "stopped": "green",
    "interrupted": "magenta",
    "failed": "bold red",
    "lost": "bold red",
    "damaged": "bold red",
}
"""Style of each status of a run or trial."""


def make_heading(path: str, status: str, *reasons: str) -> Text:
    text = Text.assemble((path, "bold"), "  ", (status, STYLES.get(status, "")))
    for reason in reasons:
        text.append(f"  {reason}")
    return text


def make_bar_line(label: str, share: float | None, eta_s: float | None) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [Text(label)]
    if share is not None:
        bar = ProgressBar(
            total=1.0, completed=share, width=24, complete_style="green", finished_style="green"
        )
        cells += [bar, format_percent(share)]
    if eta_s is not None:
        cells.append(Text(f"eta {format_rough_duration(eta_s)}"))
    line.add_row(*cells)
    return line


def format_percent(share: float | None) -> str:
    """Format a share, rounded down, so that 100% means complete."""
    return "" if share is None else f"{int(round(100 * share, 9))}%"


def make_table(
    rows: Sequence[Mapping[str, str | Text]], left: Sequence[str], cut: Sequence[str] = ()
) -> Table:
    """Make a table without empty columns.

    Columns in `left` align left; those in `cut` share the space that remains, and are cut. Each row
    is one line.
    """
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), expand=bool(cut)
    )
    names = []
    for name in rows[0]:
        if any(row[name] for row in rows):
            names.append(name)

    for name in names:
        table.add_column(
            Text(name),
            justify="left" if name in left else "right",
            no_wrap=True,
            ratio=1 if name in cut else None,
        )
    for row in rows:
        cells = [row[name] for name in names]
        # rich takes brackets in plain strings for markup.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table
