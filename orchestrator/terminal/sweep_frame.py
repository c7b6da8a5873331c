"""The frame of a sweep: a view rendered as text and a table of trials."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from rich.console import RenderableType, group
from rich.text import Text

from orchestrator.disk.statuses import FAILED
from orchestrator.terminal.frame_parts import (
    STYLES,
    format_percent,
    make_bar_line,
    make_heading,
    make_table,
)
from orchestrator.terminal.run_frame import format_slowness
from orchestrator.terminal.sweep_view import SweepView, TrialView
from orchestrator.units import format_count, format_parameter, format_rough_duration, format_value

_SWEEP_LINES = 8
"""Number of lines of a frame besides trials."""
_MIN_TRIALS = 3
"""Number of trials that are always shown."""


@group()
def draw_sweep_frame(view: SweepView, lines: int | None = None) -> Iterator[RenderableType]:
    """Render a sweep and as many trials as fit: first the running ones, then the best."""
    yield make_heading(view.path, view.status)
    progress = f"{view.ended} of {format_count(view.total, 'trial')} ended"
    yield make_bar_line(progress, view.share, view.eta_s)
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
    visible = view.trials
    if lines is not None:
        visible = view.trials[: max(_MIN_TRIALS, lines - _SWEEP_LINES)]

    paths = dict.fromkeys(chain.from_iterable(trial.values for trial in visible))
    names = shorten_names([*paths])
    rows = [_make_trial_cells(trial, names, trial.name == view.best) for trial in visible]
    yield make_table(rows, left=("trial", "status", "values", ""), cut=("values", ""))

    hidden = len(view.trials) - len(visible)
    if hidden:
        failed = view.failed - sum(trial.status in FAILED for trial in visible)
        of_them = f", {failed} of them failed" if failed else ""
        yield Text(f"and {hidden} more{of_them}", "dim")


def _make_trial_cells(
    trial: TrialView, names: Mapping[str, str], is_best: bool
) -> dict[str, str | Text]:
    style = "bold green" if is_best else ""
    share = trial.run.progress.share if trial.run else None
    eta_s = trial.run.progress.eta_s if trial.run else None
    values = [f"{names[path]}={format_parameter(value)}" for path, value in trial.values.items()]
    return {
        "trial": Text(trial.name, style),
        "status": Text(trial.status, STYLES.get(trial.status, "")),
        "done": format_percent(share),
        "eta": "" if eta_s is None else format_rough_duration(eta_s),
        "last": format_value("", trial.last),
        "best": format_value("", trial.best),
        "values": " ".join(values),
        "": _make_remark(trial),
    }


def _make_remark(trial: TrialView) -> Text:
    """Return the problem of a trial, or else its slowest rank, or else why it stopped."""
    problem = (trial.error or "").partition("\n")[0]
    if trial.run and not problem:
        problem = trial.run.notice or ""
    if problem:
        return Text(problem, "red")

    for rank in trial.run.ranks if trial.run else ():
        slowness = format_slowness(rank)
        if slowness:
            return Text(f"rank {rank.rank} {slowness}", "magenta")
    return Text("; ".join(trial.stopped))


def shorten_names(paths: Sequence[str]) -> dict[str, str]:
    """Shorten each dotted path to its last key, unless another path ends with the same key."""
    lasts = Counter(path.rpartition(".")[2] for path in paths)
    names = {}
    for path in paths:
        last = path.rpartition(".")[2]
        names[path] = last if lasts[last] == 1 else path
    return names
