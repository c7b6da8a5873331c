"""The page of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.report import page
from orchestrator.report.charts.stacks import SPAN_COLORS
from orchestrator.report.headline import Tile, make_headline
from orchestrator.report.markup import element
from orchestrator.report.tables import Quantity, list_values
from orchestrator.report.trial_selection import select_trials
from orchestrator.report.views.best_checkpoint import render_best_checkpoint
from orchestrator.report.views.configurations import render_configurations
from orchestrator.report.views.coordinates import render_coordinates
from orchestrator.report.views.experiment import render_experiment
from orchestrator.report.views.front import render_front
from orchestrator.report.views.importance import render_importance
from orchestrator.report.views.progress import render_progress
from orchestrator.report.views.spending import render_spending
from orchestrator.report.views.trials import render_trials
from orchestrator.sweeps.results.ranking import select_candidates, sort_best_first
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.query import TRAINING

MAX_BARS = 32
"""Maximum number of trials whose rows are read."""
MAX_CURVES = 200
"""Maximum number of trials whose reports are read."""


def outline_sweep(sweep: Sweep) -> page.Page:
    """Read what the page of a sweep shows."""
    metadata = sweep.folder.read_metadata()
    objectives = dict(sweep.objectives)
    trials = sort_best_first(sweep.trials, objectives, sweep.aggregate)
    best = _find_best(trials, objectives)
    tiles = [
        *_make_best_tiles(trials, objectives, best),
        Tile("trials", Quantity("", len(trials)), _count_by_status(trials)),
        *make_cost_tiles(trials),
    ]
    header = make_headline(sweep.name, sweep.status, metadata, tiles)
    sections = _render_sections(sweep, trials, objectives, best)
    sections.append(render_experiment(sweep.folder.read_experiment_text(), metadata))
    return page.Page(sweep.name, header, sections)


def _find_best(trials: pd.DataFrame, objectives: Mapping[str, str]) -> str | None:
    """Return the name of the best of the sorted trials; None if none can be the best yet."""
    metric = next(iter(objectives))
    if select_candidates(trials, metric).empty:
        return None
    return str(trials.index[0])


def _count_by_status(trials: pd.DataFrame) -> str:
    if trials.empty:
        return ""
    counts = trials["status"].value_counts()
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _render_sections(
    sweep: Sweep, trials: pd.DataFrame, objectives: Mapping[str, str], best: str | None
) -> list[page.Section]:
    """Render all sections on the trials, which are sorted; `best` is the name of the best one."""
    best_report = sweep.trial(best).best if best else None
    sections = []
    if sweep.repeats > 1:
        sections.append(
            render_configurations(trials, objectives, sweep.aggregate, sweep.repeated_path)
        )
    sections += [
        render_trials(trials, objectives, str(sweep.folder)),
        render_best_checkpoint(sweep.folder, best_report, best),
        render_coordinates(trials, objectives, best),
    ]
    if _has_parameters(sweep, trials):
        sections.append(render_importance(trials, objectives, sweep.aggregate, sweep.repeated_path))

    best_names = [str(name) for name in trials.index[:MAX_BARS]]
    sections += [
        render_front(trials, objectives),
        _render_curves(sweep, trials, objectives, best),
        render_spending(compute_mean_spans(sweep, best_names)),
    ]
    return sections


def _render_curves(
    sweep: Sweep, trials: pd.DataFrame, objectives: Mapping[str, str], best: str | None
) -> page.Section:
    """Render the learning curves of the trials that have reported, of many only a selection."""
    metric = next(iter(objectives))
    reported: list[str] = []
    if len(trials):
        reported.extend(map(str, trials.index[trials[metric].notna()]))
    drawn = select_trials(reported, MAX_CURVES)
    reports = sweep.folder.storage.map(lambda name: sweep.trial(name).reports(), drawn)
    reports_by_trial = dict(zip(drawn, reports, strict=True))
    return render_progress(reports_by_trial, objectives, len(reported), best)


def _has_parameters(sweep: Sweep, trials: pd.DataFrame) -> bool:
    """Return whether a sweep may vary more than the repeated path; its first trial tells."""
    repeated = {CONFIG + sweep.repeated_path} if sweep.repeats > 1 else set()
    parameters = {path for path in trials.columns if path.startswith(CONFIG)}
    return trials.empty or bool(parameters - repeated)


def compute_mean_spans(sweep: Sweep, names: Sequence[str]) -> pd.DataFrame:
    """Return the mean spans of the training iterations of some trials."""
    means = {}
    for name in names:
        rows = sweep.trial(name).rows()
        spans = {span: f"avg({span})" for span in SPAN_COLORS if span in rows.columns}
        means[name] = rows.aggregate(spans, where=TRAINING).iloc[0]
    table = pd.DataFrame(means).T.reindex(columns=[*SPAN_COLORS])
    return table.dropna(how="all").dropna(how="all", axis=1)


def _make_best_tiles(
    trials: pd.DataFrame, objectives: Mapping[str, str], best: str | None
) -> list[Tile]:
    """Make tiles of the best value and of the trial that has it."""
    if best is None:
        return []
    metric, mode = next(iter(objectives.items()))
    row: Any = trials.loc[best]
    paths = [path for path in trials.columns if path.startswith(CONFIG)]
    chosen = {path.removeprefix(CONFIG): row[path] for path in paths}
    link = element("a", best, href=f"#{best}")
    return [
        Tile(f"best {metric} ({mode})", Quantity(metric, float(row[metric])), best),
        Tile("best trial", link, list_values(chosen)),
    ]


def make_cost_tiles(trials: pd.DataFrame) -> list[Tile]:
    """Make tiles of the time and the memory that the trials took."""
    entries: list[Tile] = []
    if "train_s" in trials:
        spent = trials["train_s"] * trials["ranks"]
        if "leader" in trials:  # its training lasts until the longest trial of its group ends
            reports = trials["reports"]
            leaders = trials["leader"].fillna(trials.index.to_series())
            spent = spent * reports.groupby(leaders).transform("max") / reports.clip(lower=1)
        note = "training time of each trial's slowest rank, times its ranks"
        entries.append(Tile("rank-seconds", Quantity("", float(spent.sum())), note))
    if "process_peak_rss_bytes" in trials:
        peaks = trials["process_peak_rss_bytes"].dropna()
        if len(peaks):
            peak = Quantity("process_peak_rss_bytes", float(peaks.max()))
            entries.append(Tile("peak memory of a process", peak, str(peaks.idxmax())))
    return entries
