"""A sweep's result: what each trial chose, reached and cost. Reads files alone; needs no Ray."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.sweeps.folder import open_sweep_folder, trial_folders

if TYPE_CHECKING:
    import pandas as pd


class Sweep:
    """One sweep, under way or over."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}, status={self.status!r})"

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def path(self) -> str:
        """Where the sweep lies."""
        return str(self.folder)

    @property
    def status(self) -> str:
        """running, finished, interrupted, failed, or lost (its driver died)."""
        return self.folder.status()

    @cached_property
    def objective(self) -> tuple[str, str]:
        """The metric trials are judged by, and `max` or `min`."""
        about = self.folder.about()["sweep"]
        return about["metric"], about["mode"]

    @property
    def runs(self) -> list[Run]:
        """Every trial as a run."""
        return [Run(folder) for folder in trial_folders(self.folder)]

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial: its values as `config/...`, its metrics at its best report, what it cost, and how it ended."""
        import pandas as pd

        table = pd.DataFrame([self._row(run) for run in self.runs])
        return table.set_index("trial") if len(table) else table

    def _row(self, run: Run) -> dict[str, Any]:
        metric, _ = self.objective
        about = run.folder.about()
        reports = run.reports()
        best = self._best_report(reports)
        metrics = {name: value for name, value in best.items() if "/" in name}
        last = {f"last/{metric}": reports[-1].get(metric)} if reports else {}
        return {
            "trial": run.name,
            "status": run.status,
            **{f"config/{path}": _cell(value) for path, value in about["values"].items()},
            metric: metrics.pop(metric, None),
            **last,
            **metrics,
            "epoch": best.get("epoch"),
            "reports": len(reports),
            **_costs(run),
            "error": about.get("error"),
        }

    def _best_report(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        metric, mode = self.objective
        judged = [report for report in reports if _is_number(report.get(metric))]
        if not judged:
            return {}
        return (max if mode == "max" else min)(judged, key=lambda report: report[metric])

    @property
    def stats(self) -> pd.DataFrame:
        """The stats of all trials, with the trial as first column."""
        import pandas as pd

        tables = [run.stats.assign(trial=run.name) for run in self.runs]
        tables = [table for table in tables if len(table)]
        if not tables:
            return pd.DataFrame(columns=["trial"])
        joined = pd.concat(tables, ignore_index=True)
        for name in ("trial", "phase", "node"):
            joined[name] = joined[name].astype("category")
        return joined[["trial", *[name for name in joined.columns if name != "trial"]]]

    @property
    def best(self) -> Run:
        """The trial whose best report is best; raises UsageError where no trial has reported the metric."""
        metric, mode = self.objective
        judged = [(report[metric], run) for run in self.runs if (report := self._best_report(run.reports()))]
        if not judged:
            raise UsageError(f"no trial of {self.path} has reported {metric} yet")
        return (max if mode == "max" else min)(judged, key=lambda entry: entry[0])[1]


def _costs(run: Run) -> dict[str, Any]:
    """Median step time, and the largest memory of any rank."""
    stats = run.stats
    training = stats[stats["phase"] == "train"]
    costs: dict[str, Any] = {"ranks": int(stats["rank"].nunique())}
    if "step_s" in training:
        costs["step_s"] = training["step_s"].median()
        costs["train_s"] = training.groupby("rank")["step_s"].sum().max()
    for column in ("rss_bytes", "cuda_peak_allocated_bytes"):
        if column in stats:
            costs[f"peak_{column.removeprefix('cuda_peak_')}"] = stats[column].max()
    return costs


def _cell(value: Any) -> Any:
    """A value as it stands in a table: mappings, such as a whole hook, as text."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value


def open_sweep(path: str | Path) -> Sweep:
    """Opens a sweep that exists; raises UsageError where there is none."""
    return Sweep(open_sweep_folder(path))
