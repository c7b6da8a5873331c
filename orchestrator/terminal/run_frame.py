"""The frame of a run: a view rendered as text and tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType, group
from rich.text import Text

from orchestrator.column_names import COSTS
from orchestrator.terminal.frame_parts import make_bar_line, make_heading, make_table
from orchestrator.terminal.run_view import RankView, RunProgress, RunView
from orchestrator.units import (
    format_count,
    format_rough_duration,
    format_seconds,
    format_value,
    number_epoch,
)

MAX_RANKS = 16
"""Maximum number of ranks in the table. If there are more, it has those with the most work of their
own."""
MAX_FINDINGS = 3
_PHASES = ("val/", "test/", "train/")


@group()
def draw_run_frame(view: RunView, lines: int | None = None) -> Iterator[RenderableType]:
    """Render a run for 80 columns or more, in any number of lines."""
    yield make_heading(view.path, view.status, *view.stopped)
    counters = "  ".join(_format_counters(view.progress))
    yield make_bar_line(counters, view.progress.share, view.progress.eta_s)
    speed = "   ".join(_format_speed(view))
    if speed:
        yield Text(speed)
    if view.report:
        metrics = "   ".join(_format_metrics(view.report))
        epoch = f", epoch {number_epoch(view.report['epoch'])}" if "epoch" in view.report else ""
        yield Text(f"report {view.reports}{epoch}:   {metrics}")
    if view.attempts > 1:
        start = view.resumed_from or "the beginning"
        yield Text(f"attempt {view.attempts - 1}, resumed from {start}")
    if view.ranks:
        yield from _draw_ranks(view.ranks)
    for finding in view.findings[:MAX_FINDINGS]:
        yield Text.assemble((f"{finding.kind}: ", "bold magenta"), finding.sentence)
    hidden = len(view.findings) - MAX_FINDINGS
    if hidden > 0:
        yield Text(f"and {hidden} more: hookyard doctor {view.path}", "dim")
    for problem in filter(None, (view.error, view.notice)):
        yield Text(problem, "bold red")


def _draw_ranks(ranks: Sequence[RankView]) -> Iterator[RenderableType]:
    visible = ranks
    if len(ranks) > MAX_RANKS:
        visible = sorted(ranks, key=_get_work_s, reverse=True)[:MAX_RANKS]
    yield make_table([_make_rank_cells(rank) for rank in visible], left=("node", "slowest"))

    hidden = len(ranks) - len(visible)
    if hidden:
        yield Text(f"and {format_count(hidden, 'rank')} with less work of their own", "dim")


def _get_work_s(rank: RankView) -> float:
    return rank.timing.work_s if rank.timing else 0.0


def _format_counters(progress: RunProgress) -> Iterator[str]:
    if progress.epoch is not None:
        number = number_epoch(progress.epoch)
        if progress.epochs:
            # A resumed run without rows may have completed its last epoch.
            yield f"epoch {min(number, progress.epochs)} of {progress.epochs}"
        else:
            yield f"epoch {number}"
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
        yield f"last row {format_rough_duration(view.row_age_s)} ago"


def _format_metrics(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the model's metrics, those of `val` first."""
    for phase in _PHASES:
        for name, value in report.items():
            is_cost = name.endswith(COSTS)
            if name.startswith(phase) and not is_cost and isinstance(value, int | float):
                yield f"{name} {value:.4g}"


def _make_rank_cells(rank: RankView) -> dict[str, str | Text]:
    timing = rank.timing
    peak = rank.peaks.get("cuda_peak_allocated_bytes")
    return {
        "rank": str(rank.rank),
        "node": rank.node,
        "own work": format_seconds(timing.work_s) if timing else "",
        "waiting": format_seconds(timing.wait_s) if timing else "",
        "memory": format_value("rss_bytes", rank.rss_bytes),
        "GPU peak": format_value("cuda_peak_allocated_bytes", peak),
        "last row": ""
        if rank.row_age_s is None
        else f"{format_rough_duration(rank.row_age_s)} ago",
        "slowest": Text(format_slowness(rank), "bold magenta"),
    }


def format_slowness(rank: RankView) -> str:
    """Say how far the rank that the others wait for is behind, and in which span; empty for the
    others."""
    if rank.timing is None or not rank.timing.slowest:
        return ""
    return f"+{format_seconds(rank.timing.behind_s)} {rank.timing.span}"
