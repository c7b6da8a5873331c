"""The page of a run."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.doctor import Diagnosis, diagnose_run
from orchestrator.report import page
from orchestrator.report.markup import Quantity, element
from orchestrator.report.page import Tile
from orchestrator.report.views.experiment import render_best_checkpoint, render_experiment
from orchestrator.report.views.learning import (
    find_best_and_last,
    render_learning,
    render_memory,
    render_other_columns,
)
from orchestrator.report.views.time import render_hooks, render_spans
from orchestrator.runs.result import Run
from orchestrator.tables.row_blocks import merge_blocks

MAX_METRIC_TILES = 4
"""Maximum number of metrics in the headline."""
MAX_FINDINGS = 8
"""Maximum number of findings on the page."""
_PEAKS = {
    "rss_bytes": "peak memory of a process",
    "cuda_peak_allocated_bytes": "peak memory of a device",
}


def make_run_page(run: Run, made: str) -> str:
    """Make the page of a run, which may still be running. `made` is the time of creation."""
    metadata, reports, modes = run.folder.read_metadata(), run.reports(), run.modes
    rows, hook_costs = run.rows(), run.hook_costs
    columns = {
        "step_s": merge_blocks("step_s", "total"),
        **{name: merge_blocks(name, "high") for name in _PEAKS},
    }
    recorded = {name: how for name, how in columns.items() if name in rows.columns}
    by_rank = rows.aggregate({"rows": "sum(rows)::bigint", **recorded}, ["rank"], table=rows.blocks)
    sections = [
        render_findings(diagnose_run(run.folder, rows, hook_costs), str(run.folder)),
        render_best_checkpoint(run.folder, run.best),
        render_learning(rows, reports, modes),
        render_spans(rows, reports),
        render_memory(rows),
        render_hooks(
            hook_costs, float(by_rank["step_s"].sum()) if "step_s" in by_rank else math.nan
        ),
        render_other_columns(rows),
        render_experiment(run.folder.read_experiment_text(), metadata, run.folder.read_attempts()),
    ]
    tiles = [*_make_metric_tiles(reports, modes), *_make_cost_tiles(by_rank)]
    return page.make_page(
        run.name,
        str(run.folder),
        page.make_headline(run.name, run.status, metadata, tiles),
        sections,
        made,
    )


def render_findings(diagnosis: Diagnosis, path: str) -> page.Section:
    """Render the findings on a run, most serious first. `path` is the path of the run."""
    content = "No findings." if diagnosis.is_healthy else "There are too few rows for a diagnosis."
    if diagnosis.findings:
        cards = [
            element(
                "article",
                element("h3", f"{number}. {finding.kind}"),
                element("p", finding.sentence),
                element("p", "Try: ", finding.advice),
                element("p", "See: ", element("code", finding.query)) if finding.query else None,
                class_="card",
            )
            for number, finding in enumerate(diagnosis.findings[:MAX_FINDINGS], start=1)
        ]
        omitted = len(diagnosis.findings) - len(cards)
        more = f"And {omitted:,} less serious ones: hookyard doctor {shlex.quote(path)}"
        content = element("div", *cards, page.make_note(more) if omitted else None, class_="cards")
    return page.Section("findings", "Findings", content, f"{diagnosis}. By hookyard doctor.")


def _make_metric_tiles(
    reports: Sequence[Mapping[str, Any]], modes: Mapping[str, str]
) -> list[Tile]:
    """Make tiles of the metrics' best values, or last ones if unknown: metrics of val and test if
    there are any."""
    names = dict.fromkeys(
        name for report in reports for name in report if not name.endswith(units.COSTS)
    )
    shown = [name for name in names if name.startswith(("val/", "test/"))] or [
        name for name in names if name.startswith("train/")
    ]
    tiles = []
    for name, best, last in find_best_and_last(shown, reports, modes):
        report = best or last
        note = f"epoch {report.get('epoch')}, step {report.get('step')}"
        tiles.append(
            Tile(f"{'best' if best else 'last'} {name}", Quantity(name, report[name]), note)
        )
    return tiles[:MAX_METRIC_TILES]


def _make_cost_tiles(by_rank: pd.DataFrame) -> list[Tile]:
    tiles: list[Tile] = []
    if not len(by_rank):
        return tiles
    if "step_s" in by_rank:
        ranks = len(by_rank)
        note = f"in {by_rank['rows'].sum():,} iterations of {ranks:,} {'rank' if ranks == 1 else 'ranks'}"
        tiles.append(Tile("rank-seconds", Quantity("", float(by_rank["step_s"].sum())), note))
    for name, title in _PEAKS.items():
        if name in by_rank and by_rank[name].notna().any():
            tiles.append(
                Tile(
                    title,
                    Quantity(name, float(by_rank[name].max())),
                    f"rank {by_rank[name].idxmax()}",
                )
            )
    return tiles
