"""A sweep's page: its tables in, one HTML document out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from orchestrator.records.metadata import RunMetadata
from orchestrator.report import page, units
from orchestrator.report.markup import Markup, element
from orchestrator.report.page import Tile
from orchestrator.report.tables import Quantity, table
from orchestrator.report.views.comparison import coordinates, front, parameter_importance, progress, spending
from orchestrator.report.views.experiment import experiment
from orchestrator.report.views.learning import Reports
from orchestrator.report.views.spans import ORDER
from orchestrator.report.views.trials import details, trials
from orchestrator.stats import quantities
from orchestrator.sweeps.results.analysis import CONFIG

if TYPE_CHECKING:
    from orchestrator.sweeps.results.result import Sweep

BARS = 32
"""The most trials whose rows are read."""


@dataclass(frozen=True)
class SweepTables:
    """All that a sweep's page is made of."""

    name: str
    path: str
    status: str
    metadata: RunMetadata
    """What `run.json` says."""
    config: str
    """`experiment.yaml` as it stands."""
    objectives: Mapping[str, str]
    """Each metric with `max` or `min`; the first names the best trial."""
    trials: pd.DataFrame
    """The best first."""
    reports: Mapping[str, Reports]
    """By trial."""
    history: Sequence[Mapping[str, Any]]
    """Who went on from whom, in a population."""
    spans: pd.DataFrame
    """The mean training iteration of the best trials: a row for each, a column for each span."""


def read_sweep(sweep: Sweep) -> SweepTables:
    """The tables of a sweep, under way or over."""
    from orchestrator.sweeps.results.population_history import History

    config = sweep.folder.storage.read("experiment.yaml").decode()
    reports = {run.name: run.reports() for run in sweep.runs}
    history = [asdict(exploit) for exploit in History(sweep.folder).read()]
    objectives = dict(sweep.objectives)
    ordered = best_first(sweep.trials, objectives)
    spans = mean_spans(sweep, list(map(str, ordered.index[:BARS])))
    return SweepTables(
        sweep.name, sweep.path, sweep.status, sweep.folder.metadata(), config, objectives, ordered, reports, history, spans
    )


def mean_spans(sweep: Sweep, names: Sequence[str]) -> pd.DataFrame:
    """The mean training iteration of some trials; only the spans are read, one trial after the other."""
    from orchestrator.stats.tables import recorded_schema

    means = {}
    for name in names:
        run = sweep.trial(name)
        schema = recorded_schema(run.folder.storage, "rows")
        known = [span for span in ORDER if schema is not None and span in schema.names]
        means[name] = run.load_stats(known, "phase == 'train'").mean() if known else pd.Series(dtype=float)
    return pd.DataFrame(means).T.reindex(columns=[*ORDER]).dropna(how="all").dropna(how="all", axis=1)


def sweep_page(sweep: SweepTables, made: str) -> str:
    """The page; `made` says when it was made."""
    ordered = sweep.trials
    sections = [
        trials(ordered, sweep.objectives),
        coordinates(ordered, sweep.objectives, logarithmic(sweep.config)),
        parameter_importance(ordered, sweep.objectives),
        front(ordered, sweep.objectives),
        progress(sweep.reports, sweep.objectives, list(map(str, ordered.index))),
        spending(sweep.spans),
        *([_population(sweep.history)] if sweep.history else []),
        details(ordered, sweep.objectives, sweep.path),
        experiment(sweep.config, sweep.metadata),
    ]
    return page.page(sweep.name, sweep.path, _headline(sweep), sections, made)


def best_first(trials: pd.DataFrame, objectives: Mapping[str, str]) -> pd.DataFrame:
    """The trials by the sweep's first metric; those without it at the end."""
    metric, mode = next(iter(objectives.items()))
    return trials.sort_values(metric, ascending=mode == "min", kind="stable") if metric in trials else trials


def logarithmic(config: str) -> set[str]:
    """The paths whose domain spreads evenly over magnitudes, as the sweep's file says."""
    space = ((yaml.safe_load(config) or {}).get("sweep") or {}).get("space") or {}
    return {
        path for path, domain in space.items() if isinstance(domain, dict) and any("log" in kind for kind in domain)
    }


def _headline(sweep: SweepTables) -> Markup:
    counts = sweep.trials["status"].value_counts() if len(sweep.trials) else pd.Series(dtype=int)
    note = ", ".join(f"{count} {status}" for status, count in counts.items())
    trials = Tile("trials", Quantity("", len(sweep.trials)), note)
    entries = [*_best_tiles(sweep.trials, sweep.objectives), trials, *_cost_tiles(sweep.metadata, sweep.trials)]
    return page.headline(sweep.name, sweep.status, sweep.metadata, entries)


def _best_tiles(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[Tile]:
    metric, mode = next(iter(objectives.items()))
    if metric not in trials or not trials[metric].notna().any():
        return []
    best, name = trials.iloc[0], str(trials.index[0])
    values = units.listed({path.removeprefix(CONFIG): best[path] for path in trials.columns if path.startswith(CONFIG)})
    reached = Tile(f"best {metric} ({mode})", Quantity(metric, float(best[metric])), name)
    return [reached, Tile("best trial", element("a", name, href=f"#{name}"), values)]


def _cost_tiles(metadata: RunMetadata, trials: pd.DataFrame) -> list[Tile]:
    entries: list[Tile] = []
    if metadata.wall_s is not None:
        entries.append(Tile("wall time", Quantity("wall_s", metadata.wall_s), "of the whole sweep"))
    if "train_s" in trials:
        spent = float((trials["train_s"] * trials["ranks"]).sum())
        entries.append(Tile("rank-seconds", Quantity("", spent), "of training: each trial's slowest rank times its ranks"))
    peaks = trials["peak_rss_bytes"].dropna() if "peak_rss_bytes" in trials else pd.Series(dtype=float)
    if len(peaks):
        most = Quantity("peak_rss_bytes", float(peaks.max()))
        entries.append(Tile("peak memory of a process", most, str(peaks.idxmax())))
    return entries


def _population(history: Sequence[Mapping[str, Any]]) -> page.Section:
    """Who went on from whose weights, with which values."""
    columns = ("trial", "source", "step", "score", "source_score")
    rows = [(*(exploit[name] for name in columns), _changes(exploit["before"], exploit["after"])) for exploit in history]
    headings = {"source": "from", "source_score": "score of the other"}
    drawn = table("In the order in which it happened", (*columns, "values"), rows, headings=headings, class_="sortable")
    return page.Section("population", "Who went on from whom", drawn)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changed = {path: value for path, value in after.items() if before.get(path) != value}
    return "; ".join(f"{path}: {_text(before.get(path))} to {_text(value)}" for path, value in changed.items()) or "the same values"


def _text(value: Any) -> str:
    return quantities.text("", value) or "null"
