"""Frames: a run or a sweep rendered as text and tables, for `watch` and for the driver's
terminal."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, group
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orchestrator.disk.run_folder import RunFolder
from orchestrator.terminal.printable import escape_controls
from orchestrator.terminal.run_status import (
    LiveRun,
    RankView,
    RunProgress,
    RunView,
    get_read_interval_s,
)
from orchestrator.terminal.sweep_status import LiveSweep, SweepView, TrialView
from orchestrator.units import format_duration, format_seconds, format_value

MAX_RANKS = 16
"""Maximum number of ranks in the table. If there are more, it has those with the most work of their
own."""
MAX_FINDINGS = 3
MAX_READ_SHARE = 0.05
"""Maximum share of the time for reading files."""
_STYLES = {
    "running": "bold",
    "finished": "green",
    "stopped": "green",
    "interrupted": "magenta",
    "failed": "bold red",
    "lost": "bold red",
}
_PHASES = ("val/", "test/", "train/")
_SWEEP_LINES, _MIN_TRIALS = 8, 3
"""Number of lines of a sweep's frame besides trials, and of trials that are always shown."""


class LiveFrame:
    """Frame of a run or a sweep for a display, which calls it with the number of lines."""

    def __init__(self, folder: RunFolder) -> None:
        is_sweep = bool(folder.read_metadata().sweep)
        self.read_view: Callable[[], Any] = (
            LiveSweep(folder).read_view if is_sweep else LiveRun(folder).read_view
        )
        """Function that reads new data and returns the view."""
        self.draw: Callable[[Any, int | None], RenderableType] = (
            draw_sweep_frame if is_sweep else draw_run_frame
        )
        """Function that renders a view in a number of lines."""
        self.every_s = get_read_interval_s(folder.storage)
        self._view: Any = None
        self._next_look = -math.inf

    def __call__(self, lines: int) -> RenderableType:
        if (start := monotonic()) >= self._next_look:
            with suppress(
                Exception
            ):  # a display must never end training; the next read may succeed
                self._view = self.read_view()
            self._next_look = monotonic() + max(
                self.every_s, (monotonic() - start) / MAX_READ_SHARE
            )
        return self.draw(self._view, lines) if self._view else ""


class PrintableConsole(Console):
    """A console that escapes control characters in the text of stored runs."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(escape_controls(segment.text), segment.style)
            )


# A run


@group()
def draw_run_frame(view: RunView, lines: int | None = None) -> Iterator[RenderableType]:
    """Render a run for 80 columns or more, in any number of lines."""
    yield _make_heading(view.path, view.status, *view.stopped)
    yield _make_bar_line(
        "  ".join(_format_counters(view.progress)), view.progress.share, view.progress.eta_s
    )
    if pace := [*_format_speed(view)]:
        yield Text("   ".join(pace))
    if view.report:
        metrics = "   ".join(_format_metrics(view.report))
        yield Text(f"report {view.reports}, epoch {view.report.get('epoch', '-')}:   {metrics}")
    if view.attempts > 1:
        yield Text(
            f"attempt {view.attempts - 1}, resumed from {view.resumed_from or 'the beginning'}"
        )
    if view.ranks:
        visible = view.ranks
        if len(visible) > MAX_RANKS:
            by_work = sorted(
                visible, key=lambda rank: rank.timing.work_s if rank.timing else 0.0, reverse=True
            )
            visible = by_work[:MAX_RANKS]
        yield _make_table([_make_rank_cells(rank) for rank in visible], left=("node", "slowest"))
        if len(visible) < len(view.ranks):
            yield Text(
                f"and {len(view.ranks) - len(visible)} ranks with less work of their own", "dim"
            )
    for finding in view.findings[:MAX_FINDINGS]:
        yield Text.assemble((f"{finding.kind}: ", "bold magenta"), finding.sentence)
    if len(view.findings) > MAX_FINDINGS:
        yield Text(
            f"and {len(view.findings) - MAX_FINDINGS} more: hookyard doctor {view.path}", "dim"
        )
    for problem in filter(None, (view.error, view.notice)):
        yield Text(problem, "bold red")


def _make_heading(path: str, status: str, *reasons: str) -> Text:
    return Text.assemble(
        (path, "bold"),
        "  ",
        (status, _STYLES.get(status, "")),
        *(f"  {reason}" for reason in reasons),
    )


def _make_bar_line(label: str, share: float | None, eta_s: float | None) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [Text(label)]
    if share is not None:
        bar = ProgressBar(
            total=1.0, completed=share, width=24, complete_style="green", finished_style="green"
        )
        cells += [bar, format_percent(share)]
    if eta_s is not None:
        cells.append(Text(f"eta {format_duration(eta_s)}"))
    line.add_row(*cells)
    return line


def format_percent(share: float | None) -> str:
    """Format a share, rounded down, so that 100% means complete."""
    return "" if share is None else f"{int(round(100 * share, 9))}%"


def _format_counters(progress: RunProgress) -> Iterator[str]:
    if progress.epoch is not None:
        yield f"epoch {progress.epoch}{f' of {progress.epochs}' if progress.epochs else ''}"
    if progress.steps:
        yield f"step {progress.step} of {progress.steps}"
    if progress.phase not in (None, "train"):
        yield str(progress.phase)


def _format_speed(view: RunView) -> Iterator[str]:
    if view.speed.loss is not None:
        yield f"loss {view.speed.loss:.4g}"
    if view.speed.samples_per_s is not None:
        yield f"{view.speed.samples_per_s:,.0f} samples/s"
    if view.speed.step_s is not None:
        yield f"{format_seconds(view.speed.step_s)} per iteration"
    if view.row_age_s is not None and view.status == "running":
        yield f"last row {format_duration(view.row_age_s)} ago"


def _format_metrics(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the model's metrics, those of `val` first."""
    for phase in _PHASES:
        for name, value in report.items():
            if (
                name.startswith(phase)
                and not name.endswith(("_s", "_bytes"))
                and isinstance(value, int | float)
            ):
                yield f"{name} {value:.4g}"


def _make_table(
    rows: Sequence[Mapping[str, str | Text]], left: Sequence[str], cut: Sequence[str] = ()
) -> Table:
    """Make a table without empty columns.

    Columns in `left` align left; those in `cut` share the space that remains, and are cut. Each row
    is one line.
    """
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), expand=bool(cut)
    )
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in names:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=True,
            ratio=1 if name in cut else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _make_rank_cells(rank: RankView) -> dict[str, str | Text]:
    timing = rank.timing
    return {
        "rank": str(rank.rank),
        "node": rank.node,
        "own work": format_seconds(timing.work_s) if timing else "",
        "waiting": format_seconds(timing.wait_s) if timing else "",
        "memory": format_value("rss_bytes", rank.rss_bytes),
        "GPU peak": format_value(
            "cuda_peak_allocated_bytes", rank.peaks.get("cuda_peak_allocated_bytes")
        ),
        "last row": "" if rank.row_age_s is None else f"{format_duration(rank.row_age_s)} ago",
        "slowest": Text(_format_slowness(rank), "bold magenta"),
    }


def _format_slowness(rank: RankView) -> str:
    """Say how far the rank that the others wait for is behind, and in which span; empty for the
    others."""
    return (
        f"+{format_seconds(rank.timing.behind_s)} {rank.timing.span}"
        if rank.timing and rank.timing.slowest
        else ""
    )


# A sweep


@group()
def draw_sweep_frame(view: SweepView, lines: int | None = None) -> Iterator[RenderableType]:
    """Render a sweep and as many trials as fit: first the running ones, then the best."""
    yield _make_heading(view.path, view.status)
    yield _make_bar_line(f"{view.ended} of {view.total} trials ended", view.share, view.eta_s)
    counts = {**view.counts, "waiting": view.total - len(view.trials)}
    yield Text(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    yield _make_best_line(view)
    if view.trials:
        yield from _draw_trials(view, lines)
    for problem in filter(None, (view.error, view.notice)):
        yield Text(problem, "bold red")


def _make_best_line(view: SweepView) -> Text:
    best = next((trial for trial in view.trials if trial.name == view.best), None)
    if best is None:
        return Text(f"no best trial by {view.metric} yet")
    if view.configuration is None:
        return Text.assemble(
            f"Best: {view.metric} ", (f"{best.best:.4g}", "bold green"), f" ({best.name})"
        )
    mean = view.configuration.describe(view.metric)
    place = f" (configuration {view.configuration.number}, best trial {best.name})"
    return Text.assemble(f"Best: {view.metric} ", (mean, "bold green"), place)


def _draw_trials(view: SweepView, lines: int | None) -> Iterator[RenderableType]:
    visible = (
        view.trials if lines is None else view.trials[: max(_MIN_TRIALS, lines - _SWEEP_LINES)]
    )
    names = shorten_names([*dict.fromkeys(path for trial in visible for path in trial.values)])
    rows = [_make_trial_cells(trial, names, trial.name == view.best) for trial in visible]
    yield _make_table(rows, left=("trial", "status", "values", ""), cut=("values", ""))
    if len(visible) < len(view.trials):
        failed = view.failed - sum(trial.status in ("failed", "lost") for trial in visible)
        yield Text(
            f"and {len(view.trials) - len(visible)} more{f', {failed} of them failed' if failed else ''}",
            "dim",
        )


def _make_trial_cells(
    trial: TrialView, names: Mapping[str, str], is_best: bool
) -> dict[str, str | Text]:
    run = trial.run
    slow = (
        f"rank {rank.rank} {_format_slowness(rank)}"
        for rank in (run.ranks if run else ())
        if _format_slowness(rank)
    )
    slowest = next(slow, "")
    problem = (trial.error or "").split("\n")[0] or (run.notice if run else None) or ""
    return {
        "trial": Text(trial.name, "bold green" if is_best else ""),
        "status": Text(trial.status, _STYLES.get(trial.status, "")),
        "done": format_percent(run.progress.share) if run else "",
        "eta": format_duration(run.progress.eta_s)
        if run and run.progress.eta_s is not None
        else "",
        "last": format_value("", trial.last),
        "best": format_value("", trial.best),
        "values": " ".join(
            f"{names[path]}={format_value('', value) or 'null'}"
            for path, value in trial.values.items()
        ),
        "": Text(problem, "red")
        if problem
        else Text(slowest or "; ".join(trial.stopped), "magenta" if slowest else ""),
    }


def shorten_names(paths: Sequence[str]) -> dict[str, str]:
    """Shorten each dotted path to its last key, unless another path ends with the same key."""
    lasts = Counter(path.rpartition(".")[2] for path in paths)
    return {path: last if lasts[last := path.rpartition(".")[2]] == 1 else path for path in paths}
