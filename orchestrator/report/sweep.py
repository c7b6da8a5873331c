"""The page of a sweep."""

from collections.abc import Mapping, Sequence

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
    metric = next(iter(objectives))
    ordered = sort_best_first(sweep.trials, objectives, sweep.aggregate)
    names = [*map(str, ordered.index)]
    best = None
    best_report = None
    if len(select_candidates(ordered, metric)):
        best = names[0]
        best_report = sweep.trial(best).best
    reported = [*map(str, ordered.index[ordered[metric].notna()])] if names else []
    drawn = select_trials(reported, MAX_CURVES)
    reports = sweep.folder.storage.map(lambda name: sweep.trial(name).reports(), drawn)

    sections = []
    if sweep.repeats > 1:
        sections.append(
            render_configurations(ordered, objectives, sweep.aggregate, sweep.repeated_path)
        )
    sections += [
        render_trials(ordered, objectives, str(sweep.folder)),
        render_best_checkpoint(sweep.folder, best_report, best),
        render_coordinates(ordered, objectives, best),
    ]
    if _has_parameters(sweep, ordered):
        sections.append(
            render_importance(ordered, objectives, sweep.aggregate, sweep.repeated_path)
        )
    sections += [
        render_front(ordered, objectives),
        render_progress(dict(zip(drawn, reports, strict=True)), objectives, len(reported), best),
        render_spending(compute_mean_spans(sweep, names[:MAX_BARS])),
        render_experiment(sweep.folder.read_experiment_text(), metadata),
    ]
    counts = ordered["status"].value_counts() if len(ordered) else pd.Series(dtype=int)
    counts_text = ", ".join(f"{count} {status}" for status, count in counts.items())
    tiles = [
        *_make_best_tiles(ordered, objectives),
        Tile("trials", Quantity("", len(ordered)), counts_text),
        *make_cost_tiles(ordered),
    ]
    header = make_headline(sweep.name, sweep.status, metadata, tiles)
    return page.Page(sweep.name, header, sections)


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


def _make_best_tiles(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[Tile]:
    metric, mode = next(iter(objectives.items()))
    if select_candidates(trials, metric).empty:
        return []
    best = trials.iloc[0]
    name = str(trials.index[0])
    paths = [path for path in trials.columns if path.startswith(CONFIG)]
    chosen = {path.removeprefix(CONFIG): best[path] for path in paths}
    reached = Tile(f"best {metric} ({mode})", Quantity(metric, float(best[metric])), name)
    return [reached, Tile("best trial", element("a", name, href=f"#{name}"), list_values(chosen))]


def make_cost_tiles(trials: pd.DataFrame) -> list[Tile]:
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
