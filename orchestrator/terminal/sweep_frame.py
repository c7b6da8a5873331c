"""The frame of a sweep: what `watch` and a sweep's own terminal show of it. Knows no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.stats.aggregate.quantities import duration, text
from orchestrator.terminal.run_frame import STYLES, bar_line, heading, percent, slowness, table_of
from orchestrator.terminal.sweep_status import SweepView, TrialView

_AROUND = 8
"""Lines of a frame that are not of trials."""
_FEWEST = 3


def sweep_frame(view: SweepView, lines: int | None = None) -> RenderableType:
    """A sweep as text and a table of its trials, in so many lines: what runs comes first, and the best of the rest."""
    return Group(*_parts(view, lines))


def _parts(view: SweepView, lines: int | None) -> Iterator[RenderableType]:
    yield heading(view.path, view.status)
    over = len(view.trials) - view.counts.get("running", 0)
    yield bar_line(f"{over} of {view.total} trials over", view.share, view.eta_s)
    counts = {**view.counts, "to come": view.total - len(view.trials)}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    yield Text.assemble(summary, *_best(view))
    if view.trials:
        yield from _trials(view, lines)
    for trouble in filter(None, (view.error, view.notice)):
        yield Text(trouble, "bold red")


def _best(view: SweepView) -> Iterator[str | tuple[str, str]]:
    best = next((trial for trial in view.trials if trial.name == view.best), None)
    if best is None:
        yield f"; no trial has reported {view.metric} yet"
        return
    if view.configuration:
        yield f"; best configuration {view.configuration.number}: {view.metric} "
        yield view.configuration.in_words(view.metric), "bold green"
        yield f", the best of them {best.name}"
        return
    yield f"; best {view.metric} "
    yield f"{best.best:.4g}", "bold green"
    yield f" in {best.name}"


def _trials(view: SweepView, lines: int | None) -> Iterator[RenderableType]:
    shown = view.trials if lines is None else view.trials[: max(_FEWEST, lines - _AROUND)]
    names = short_names({path for trial in shown for path in trial.values})
    rows = [_cells(trial, names, trial.name == view.best) for trial in shown]
    yield table_of(rows, left=("trial", "status", "values", ""), cut=() if lines is None else ("values", ""))
    if len(shown) < len(view.trials):
        failed = view.failed - sum(trial.status in ("failed", "lost") for trial in shown)
        yield Text(f"and {len(view.trials) - len(shown)} more{f', {failed} of them failed' if failed else ''}", "dim")


def _cells(trial: TrialView, names: Mapping[str, str], best: bool) -> dict[str, str | Text]:
    progress = trial.run.progress if trial.run else None
    slowest = (
        next((f"rank {rank.rank} {slowness(rank)}" for rank in trial.run.ranks if slowness(rank)), "")
        if trial.run
        else ""
    )
    trouble = (trial.error or "").split("\n")[0] or (trial.run.notice if trial.run else None) or ""
    return {
        "trial": Text(trial.name, "bold green" if best else ""),
        "status": Text(trial.status, STYLES.get(trial.status, "")),
        "done": percent(progress.share) if progress else "",
        "eta": duration(progress.eta_s) if progress and progress.eta_s is not None else "",
        "last": text("", trial.last),
        "best": text("", trial.best),
        "values": " ".join(f"{names[path]}={text('', value) or 'null'}" for path, value in trial.values.items()),
        "": (
            Text.assemble((trouble, "red"))
            if trouble
            else Text(slowest or "; ".join(trial.stopped), "magenta" if slowest else "")
        ),
    }


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each dotted path by its last parts: as few as tell it from the others."""
    paths = list(paths)
    return {path: _shortest(path, [other for other in paths if other != path]) for path in paths}


def _shortest(path: str, others: list[str]) -> str:
    parts = path.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), path)
