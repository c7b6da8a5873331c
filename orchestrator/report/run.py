"""A run's page: its tables in, one HTML document out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.records.metadata import RunMetadata
from orchestrator.report import page
from orchestrator.report.page import Tile
from orchestrator.report.tables import Quantity
from orchestrator.report.views.experiment import experiment
from orchestrator.report.views.handover import handover
from orchestrator.report.views.hooks import hooks
from orchestrator.report.views.learning import best, last, learning
from orchestrator.report.views.memory import memory
from orchestrator.report.views.recorded import recorded
from orchestrator.report.views.spans import own_work, spans
from orchestrator.report.views.verdicts import verdicts
from orchestrator.runs.result import Run
from orchestrator.stats import quantities
from orchestrator.stats.insight import diagnose, failure
from orchestrator.stats.insight.gradient_syncs import rank_of_most

HEADLINES = 4
"""The most metrics in the headline."""


def run_page(run: Run, made: str) -> str:
    """The page of a run, under way or over; `made` says when it was made."""
    metadata, reports, modes = run.folder.metadata(), run.reports(), run.modes
    stats, hook_costs = run.stats, run.hook_costs
    sections = [
        verdicts(diagnose(stats, hook_costs, ending=failure(run.status, metadata.error)), run.path),
        handover(run.folder, run.best),
        learning(stats, reports, modes),
        spans(stats, reports),
        memory(stats),
        hooks(hook_costs, stats),
        recorded(stats),
        experiment(run.folder.experiment_text(), metadata, run.folder.attempts()),
    ]
    tiles = [*_metric_tiles(reports, modes), *_cost_tiles(metadata, stats)]
    return page.page(run.name, run.path, page.headline(run.name, run.status, metadata, tiles), sections, made)


def _metric_tiles(reports: Sequence[Mapping[str, Any]], modes: Mapping[str, str]) -> list[Tile]:
    """The metrics at their best, or as last reported where that is not known; those of validation before others."""
    names = [name for name in dict.fromkeys(name for report in reports for name in report) if not quantities.unit(name)]
    judged = [name for name in names if name.startswith(("val/", "test/"))] or [name for name in names if name.startswith("train/")]
    tiles = []
    for name in judged:
        found = best(name, reports, modes)
        report = found or last(name, reports)
        if report is not None:
            note = f"epoch {report.get('epoch')}, step {report.get('step')}"
            tiles.append(Tile(f"{'best' if found else 'last'} {name}", Quantity(name, report[name]), note))
    return tiles[:HEADLINES]


def _cost_tiles(metadata: RunMetadata, stats: pd.DataFrame) -> list[Tile]:
    tiles: list[Tile] = []
    if metadata.wall_s is not None:
        tiles.append(Tile("wall time", Quantity("wall_s", metadata.wall_s), "from start to end, in whole seconds"))
    if not len(stats):
        return tiles
    ranks = int(stats["rank"].nunique())
    if "step_s" in stats:
        spent = float(stats["step_s"].sum())
        note = f"in {len(stats):,} iterations of {ranks:,} {'rank' if ranks == 1 else 'ranks'}"
        tiles.append(Tile("rank-seconds", Quantity("", spent), note))
    tiles += _peak_tiles(stats)
    slowest = slowest_rank(stats)
    if slowest is not None:
        rank, behind = slowest
        note = f"its own work takes {behind:.1%} longer than the others' median"
        tiles.append(Tile("slowest rank", Quantity("rank", rank), note))
    return tiles


def _peak_tiles(stats: pd.DataFrame) -> list[Tile]:
    columns = {"rss_bytes": "peak memory of a process", "cuda_peak_allocated_bytes": "peak memory of a device"}
    tiles = []
    for name, title in columns.items():
        if name in stats and stats[name].notna().any():
            values = stats[name].to_numpy(dtype=float)
            worst = int(np.nanargmax(values))
            tiles.append(Tile(title, Quantity(name, float(values[worst])), f"rank {stats['rank'].iloc[worst]}"))
    return tiles


def slowest_rank(stats: pd.DataFrame) -> tuple[int, float] | None:
    """The rank whose own work takes longest, by the median of its training iterations, and by how much of the others'
    median; None with one rank."""
    training = stats[stats["phase"] == "train"]
    if "step_s" not in training or training["rank"].nunique() < 2:
        return None
    medians = pd.Series(own_work(training)).groupby(training["rank"].to_numpy()).median()
    rank = rank_of_most(medians)
    others = float(medians.drop(rank).median())
    return (rank, float(medians[rank]) / others - 1) if others > 0 else None
