"""The frame of a run: what `watch` shows of it, from what is known to what is drawn. Knows no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.stats.aggregate.quantities import duration, seconds, text
from orchestrator.terminal.eta import RunProgress
from orchestrator.terminal.run_status import RankView, RunView

MOST_RANKS = 16
"""Ranks that have a row; of more, those with the most work of their own."""
MOST_FINDINGS = 3
STYLES = {
    "running": "bold",
    "finished": "green",
    "stopped": "green",
    "interrupted": "magenta",
    "failed": "bold red",
    "lost": "bold red",
}
"""How each status looks; what is not colored is readable on light and dark alike."""
_PHASES = ("val/", "test/", "train/")


def run_frame(view: RunView) -> RenderableType:
    """A run as text and tables, for 80 columns and more."""
    return Group(*_parts(view))


def _parts(view: RunView) -> Iterator[RenderableType]:
    yield heading(view.path, view.status, *view.stopped)
    yield bar_line("  ".join(_counters(view.progress)), view.progress.share, view.progress.eta_s)
    pace = [*_pace(view)]
    if pace:
        yield Text("   ".join(pace))
    if view.report:
        yield Text(
            f"report {view.reports}, epoch {view.report.get('epoch', '-')}:   {'   '.join(_metrics(view.report))}"
        )
    if view.attempts > 1:
        yield Text(f"attempt {view.attempts}, from {view.began_at or 'the beginning'}")
    if view.ranks:
        yield from _ranks(view.ranks)
    for finding in view.findings[:MOST_FINDINGS]:
        yield Text.assemble((f"{finding.kind}: ", "bold magenta"), finding.sentence)
    if len(view.findings) > MOST_FINDINGS:
        yield Text(f"and {len(view.findings) - MOST_FINDINGS} more: hookyard doctor {view.path}", "dim")
    for trouble in filter(None, (view.error, view.notice)):
        yield Text(trouble, "bold red")


def heading(path: str, status: str, *more: str) -> Text:
    """What is looked at, and how it is."""
    return Text.assemble((path, "bold"), "  ", (status, STYLES.get(status, "")), *(f"  {word}" for word in more))


def bar_line(label: str, share: float | None, eta_s: float | None) -> RenderableType:
    """A label, a bar, percent, and the time to come."""
    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [Text(label)]
    if share is not None:
        cells += [
            ProgressBar(total=1.0, completed=share, width=24, complete_style="green", finished_style="green"),
            percent(share),
        ]
    if eta_s is not None:
        cells.append(Text(f"eta {duration(eta_s)}"))
    line.add_row(*cells)
    return line


def percent(share: float | None) -> str:
    """A share; 100 % is only said where all is done."""
    return "" if share is None else f"{int(100 * share)}%"


def _counters(progress: RunProgress) -> Iterator[str]:
    if progress.epoch is not None:
        yield f"epoch {progress.epoch}{f' of {progress.epochs}' if progress.epochs else ''}"
    if progress.steps:
        yield f"step {progress.step} of {progress.steps}"
    if progress.phase not in (None, "train"):
        yield str(progress.phase)


def _pace(view: RunView) -> Iterator[str]:
    if view.speed.loss is not None:
        yield f"loss {view.speed.loss:.4g}"
    if view.speed.samples_per_s is not None:
        yield f"{view.speed.samples_per_s:,.0f} samples/s"
    if view.speed.step_s is not None:
        yield f"{seconds(view.speed.step_s)} per iteration"
    if view.row_age_s is not None and view.status == "running":
        yield f"newest row {duration(view.row_age_s)} ago"


def _metrics(report: Mapping[str, Any]) -> Iterator[str]:
    """What a report says of the model: those of val first."""
    for phase in _PHASES:
        for name, value in report.items():
            if name.startswith(phase) and not name.endswith(("_s", "_bytes")) and isinstance(value, int | float):
                yield f"{name} {value:.4g}"


def _ranks(ranks: Sequence[RankView]) -> Iterator[RenderableType]:
    shown = ranks if len(ranks) <= MOST_RANKS else sorted(ranks, key=_work, reverse=True)[:MOST_RANKS]
    yield table_of([_cells(rank) for rank in shown], left=("node", "slowest"))
    if len(shown) < len(ranks):
        yield Text(f"and {len(ranks) - len(shown)} ranks with less work of their own", "dim")


def table_of(rows: Sequence[Mapping[str, str | Text]], left: Sequence[str], cut: Sequence[str] = ()) -> Table:
    """Rows by column, without the columns that are empty in all of them. Those in `left` begin at the left; those in
    `cut` share the room that the others leave, and are cut where it is short, so that each row is a line."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), expand=bool(cut))
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in names:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=bool(cut) or name not in left,
            ratio=1 if name in cut else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(rank: RankView) -> dict[str, str | Text]:
    status = rank.standing
    return {
        "rank": str(rank.rank),
        "node": rank.node,
        "own work": seconds(status.work_s) if status else "",
        "waiting": seconds(status.wait_s) if status else "",
        "memory": text("rss_bytes", rank.rss_bytes),
        "GPU peak": text("cuda_peak_allocated_bytes", rank.peaks.get("cuda_peak_allocated_bytes")),
        "row age": "" if rank.row_age_s is None else duration(rank.row_age_s),
        "slowest": Text(slowness(rank), "bold magenta"),
    }


def _work(rank: RankView) -> float:
    return rank.standing.work_s if rank.standing else 0.0


def slowness(rank: RankView) -> str:
    """How much longer the rank for which the others wait takes, and where most; nothing of the others."""
    if rank.standing is None or not rank.standing.slowest:
        return ""
    return f"+{seconds(rank.standing.behind_s)} {rank.standing.span}"
