"""The result of a sweep: values, metrics and costs of its trials, as their files have them. Does not
need Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hooks.metrics.direction import find_direction
from orchestrator.column_names import CONFIG
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import FAILED
from orchestrator.disk.sweep_folder import list_trial_folders, open_sweep_folder, trial_name
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.runs.result import Result, Run
from orchestrator.storage.omissions import warn_once
from orchestrator.sweeps.results.configurations_table import (
    aggregate_repeats,
    make_configurations_table,
)
from orchestrator.sweeps.results.importance import MIN_TRIALS, make_importance_table
from orchestrator.sweeps.results.pareto import find_pareto_front
from orchestrator.sweeps.results.ranking import explain_no_best, select_candidates, sort_best_first
from orchestrator.sweeps.results.trial_stats import load_rows, summarize_trials
from orchestrator.sweeps.results.trials_table import make_trials_table, make_value_cells
from orchestrator.tables.conditions import check_columns
from orchestrator.tables.constraints import Constraints
from orchestrator.tables.exact_frames import concat_exactly
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count, is_number

if TYPE_CHECKING:
    from torch import Tensor, nn

    from orchestrator.experiment.sections.experiment import Experiment


_SHOWN_TRIALS = 12
"""Number of trials in a notebook's table of a sweep."""


class Sweep(Result):
    """A sweep that is running or has ended. Each table is read on access.

    `open_sweep` opens one, and `sweep` returns one.

    Example:
        ```python
        sweep = open_sweep("runs/spirals-sweep")
        sweep.trials[["config/optimizer.lr", "val/accuracy"]]
        model = sweep.best.load()
        ```
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        settings = folder.read_metadata().sweep
        assert settings is not None
        self.objectives = [*settings.objectives]
        """The sweep's metrics, each with `max` or `min`."""
        self.objective = self.objectives[0]
        """The first of the objectives."""
        self.repeats = settings.repeats
        """Number of trials of each configuration, each with a different seed, or a different value
        of another path."""
        self.repeated_path = settings.repeated_path
        """Path in which they differ, such as `seed`."""
        self.aggregate = settings.aggregate
        """Aggregate of `repeats`: `mean` or `lower_bound`."""
        self.constraints = settings.constraints
        """Limits of a feasible trial, such as `<= 8 GiB`, by column of `trials`."""

    def _repr_html_(self) -> str:
        """Render the status and the best trials, for notebooks."""
        from orchestrator.runs.result_html import render_result

        trials = self.trials
        if trials.empty:
            return render_result(str(self.folder), self.status, ["no trial has begun yet"], None)

        counts = trials["status"].value_counts().items()
        notes: list[str | None] = [", ".join(f"{count} {status}" for status, count in counts)]
        others = len(trials) - _SHOWN_TRIALS
        notes.append(f"and {format_count(others, 'more trial')}" if others > 0 else None)

        objectives = dict(self.objectives)
        shown = {"status", *objectives}
        columns = [name for name in map(str, trials) if name in shown or name.startswith(CONFIG)]
        best = sort_best_first(trials, objectives, self.aggregate)[columns].head(_SHOWN_TRIALS)
        return render_result(str(self.folder), self.status, notes, best)

    @property
    def runs(self) -> list[Run]:
        """Every trial as a run."""
        return [Run(folder) for folder in list_trial_folders(self.folder)]

    def trial(self, trial: int | str) -> Run:
        """Return a trial as a run.

        Args:
            trial: Number or name of the trial, or `best`.

        Returns:
            The run.

        Raises:
            UsageError: If there is no such trial.
        """
        if trial == "best":
            return self.best
        # A number out of a table is one of NumPy's.
        name = trial if isinstance(trial, str) else trial_name(int(trial))
        folder = RunFolder(self.folder.storage / "trials", name)
        if name in ("", ".", "..") or "/" in name or not folder.exists():
            names = [folder.name for folder in list_trial_folders(self.folder)]
            existing = f"it has {names[0]} to {names[-1]}, and best" if names else "it has none yet"
            raise UsageError(f"{self.folder} has no trial '{name}'; {existing}")
        return Run(folder)

    def experiment(self, trial: int | str) -> Experiment:
        """Return a trial as an experiment, ready for `run`.

        That of a population's trial has the values of its last report.

        Args:
            trial: Number or name of the trial, or `best`.

        Returns:
            The experiment.

        Raises:
            UsageError: If there is no such trial, or if its values could not be combined.
        """
        from orchestrator.experiment.load import make_experiment_from_source

        run = self.trial(trial)
        if run.config["sweep"] is not None:
            raise UsageError(f"{run.folder} never was an experiment: {run.error}")
        source = run.folder.read_source().with_values({"name": f"{self.name}-{run.name}"})
        return make_experiment_from_source(source)

    @property
    def trials(self) -> pd.DataFrame:
        """A DataFrame with one row per trial, also before its first report.

        Columns:
            * `status`: `running`, `finished`, `stopped`, `interrupted`, `failed`, `lost`,
              `damaged` or `newer` (written by a later version of Hookyard).
            * `configuration`: Number of the configuration, with `repeats`.
            * `leader`: The trial that trained, with shared training. The others have the leader's
              `step_s`, `data_wait_share` and `samples_per_s`, but no `train_s`.
            * `config/<path>`: The trial's values, and with `repeats` its `seed` or repeated value.
              Mappings and null are text; a value that was not drawn is empty.
            * `<phase>/<name>` and other metrics: Values at the trial's best report, by the sweep's
              first metric.
            * `last/<metric>`: Last reported value of each metric, also of `test`.
            * `epoch`: Epoch of the best report.
            * `diverged`: Whether the last reported training loss or first metric is NaN or
              infinite.
            * `reports`, `ranks`: Number of reports, and of ranks with rows.
            * `step_s`: Median over the training iterations of all ranks.
            * `data_wait_share`: Share of the training time in which it waited for the loader.
            * `train_s`: Total time of the slowest rank's training iterations.
            * `samples_per_s`: Training samples of all ranks by `train_s`.
            * `process_peak_rss_bytes`: Peak resident memory of any rank's process, with memory that
              earlier trials left in it.
            * `peak_allocated_bytes`, `peak_reserved_bytes`: The trial's own peaks on any rank, on
              CUDA.
            * `gpu_utilization_percent`, `gpu_power_w`: Means, with `device_stats`.
            * `total_s`: Time that the trial ran, without pauses.
            * `stopped`: What ended the trial early: a rule, the scheduler, the budget, or a hook.
            * `error`: Why the trial failed.
            * `infeasible`: Which of the sweep's constraints an ended trial breaks, if there are any.
        """
        constraints = Constraints(self.constraints)
        return make_trials_table(self.records(), self.objective[0], constraints)

    @property
    def configurations(self) -> pd.DataFrame:
        """A DataFrame with one row per configuration of a sweep with `repeats`, best first.

        Columns:
            * `config/<path>`: The configuration's values.
            * `mean`, `std`: Mean of the sweep's first metric, and its standard deviation between
              repeats.
            * `low`, `high`: The mean's 95% interval by Student's t.
            * `n`: Trials that ended well; until then 0, and the others count.
            * `failed`, `stopped`: Number of trials that failed or stopped early.
            * `best`: The best trial.

        Raises:
            UsageError: If the sweep has no repeats.
        """
        if self.repeats == 1:
            raise UsageError(
                f"{self.folder} has one trial of each configuration; use `trials`, or set"
                " sweep.repeats for several seeds"
            )
        return make_configurations_table(
            self.trials, *self.objective, self.aggregate, self.repeated_path
        )

    def records(self) -> dict[str, TrialRecord | DamagedFile]:
        """Return the record of each trial.

        Returns:
            The records by the name of the trial; a DamagedFile if its files are damaged.
        """
        return TrialIndex(self.folder, self.objectives).read()

    def count_failed_trials(self) -> int:
        """Count the failed, lost and unreadable trials of a sweep that has ended.

        Returns:
            Their number.
        """
        # Of an ended sweep, a trial that seems to be running has lost its process.
        failed = (*FAILED, "running")
        return sum(record.status in failed for record in self.records().values())

    @property
    def metrics(self) -> pd.DataFrame:
        """A DataFrame with one row per valid report of any trial: the trial, its values
        (`config/...`), then the columns of `Run.metrics`. Leaves out damaged trials with a
        warning."""
        tables = self.folder.storage.map(self._read_reports, self.records().items())
        tables = [table for table in tables if not table.empty]
        if not tables:
            return pd.DataFrame(columns=["trial"])
        joined = concat_exactly(tables).astype({"trial": "category"})
        values = [name for name in joined if str(name).startswith(CONFIG)]
        return joined[["trial", *values, *joined.columns.drop(["trial", *values])]]

    def _read_reports(self, record_by_name: tuple[str, TrialRecord | DamagedFile]) -> pd.DataFrame:
        """Return the reports of a trial with its name and values; an empty table if it is
        damaged."""
        name, record = record_by_name
        if isinstance(record, DamagedFile):
            warn_once(f"{name} is left out: {record}")
            return pd.DataFrame()
        metrics = self.trial(name).metrics
        return metrics.assign(trial=name, **make_value_cells(record))

    @property
    def stats(self) -> pd.DataFrame:
        """Stats of all trials, with the trial as first column."""
        return self.load_stats()

    def load_stats(
        self,
        trials: Iterable[int | str] | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pd.DataFrame:
        """Return rows of some trials, with the trial as first column. Nothing else is read.

        Args:
            trials: Numbers or names of trials; by default all.
            columns: As in `Run.load_stats`.
            where: As in `Run.load_stats`.

        Returns:
            The rows.

        Raises:
            UsageError: If a trial or a column is unknown.
        """
        runs = self.runs if trials is None else [self.trial(trial) for trial in trials]
        return load_rows(runs, columns, where)

    def summary(
        self,
        by: str | None = "trial",
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pd.DataFrame:
        """Return for each trial its ranks, its rows, the median of each span and the maximum of each
        memory column.

        Args:
            by: Anything else than `trial` gives `Run.summary` by rank, node, phase, span or hook,
                with the trial before each row.
            columns: As in `Run.summary`.
            where: As in `Run.summary`.

        Returns:
            The table.

        Raises:
            UsageError: If `by` or a column is unknown, or the condition is invalid.
        """
        return summarize_trials(self.runs, by, columns, where)

    @property
    def best(self) -> Run:
        """The best trial, which did not fail and keeps the constraints; with `repeats` that of the
        best configuration.

        Raises:
            UsageError: If there is none.
        """
        metric, _ = self.objective
        trials = sort_best_first(self.trials, dict(self.objectives), self.aggregate)
        if select_candidates(trials, metric).empty:
            raise UsageError(f"{self.folder} has no best trial: {explain_no_best(trials, metric)}")
        return self.trial(str(trials.index[0]))

    def load(self, label: str = "best") -> nn.Module:
        """Return the best trial's model with the weights of a checkpoint, as `Run.load` does.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.

        Returns:
            The model, on the CPU, in evaluation mode.

        Raises:
            UsageError: If there is no best trial.
            CheckpointError: If the checkpoint is missing or damaged.
        """
        return self.best.load(label)

    def weights(self, label: str = "best") -> dict[str, Tensor]:
        """Return the state dict of `load`'s model, without importing the task.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.

        Returns:
            Tensors by name, on the CPU.

        Raises:
            UsageError: If there is no best trial.
            CheckpointError: If the checkpoint is missing or damaged.
        """
        return self.best.weights(label)

    def pareto(self, *columns: str, modes: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Return the Pareto front of columns of `trials`.

        Args:
            *columns: Names of columns; by default the sweep's metrics.
            modes: `max` or `min` for columns where neither the sweep nor the name implies it.

        Returns:
            The trials that no other trial beats in all columns.

        Raises:
            UsageError: If a column or a mode is unknown, or a column holds text.

        Example:
            ```python
            open_sweep("runs/spirals-sweep").pareto("val/accuracy", "step_s")
            ```
        """
        trials = self.trials
        objectives = dict(self.objectives)
        names = columns or tuple(objectives)
        check_columns(names, [*trials.columns])
        modes_by_column = {}
        for name in names:
            mode = (modes or {}).get(name) or find_direction(name, objectives)
            if mode not in ("max", "min"):
                raise UsageError(
                    f"the mode of {name} is unknown; set modes={{'{name}': 'max'}} or 'min'"
                )
            modes_by_column[name] = mode

        for name in names:
            if not trials[name].dropna().map(is_number).all():
                raise UsageError(
                    f"{name} has values that are not numbers; a Pareto front compares numbers"
                )
        return find_pareto_front(trials, modes_by_column)

    def importance(self, metric: str | None = None) -> pd.Series:
        """Return the importance of each parameter for a metric.

        Args:
            metric: The metric; by default the sweep's first.

        Returns:
            Shares of 1 by parameter, the largest first.

        Raises:
            UsageError: If fewer than 10 trials have the metric; with `repeats`, fewer than 10
                configurations.
        """
        return self.importance_table(metric)["importance"]

    def importance_table(self, metric: str | None = None) -> pd.DataFrame:
        """Return `importance` with the `std_error` of each share, by the bootstrap.

        Args:
            metric: The metric; by default the sweep's first.

        Returns:
            A row for each parameter.

        Raises:
            UsageError: As `importance` does.
        """
        trials = self.trials
        metric = metric or self.objective[0]
        check_columns([metric], [*trials.columns])
        # There is no lower bound without a mode.
        mode = find_direction(metric, dict(self.objectives))
        aggregate = self.aggregate if mode else "mean"
        units = aggregate_repeats(trials, metric, mode or "max", aggregate, self.repeated_path)
        if len(units) < MIN_TRIALS:
            kind = "trial" if self.repeats == 1 else "configuration"
            raise UsageError(
                f"{self.folder} has {format_count(len(units), kind)} with {metric}; parameter"
                f" importance needs {MIN_TRIALS}"
            )
        return make_importance_table(units, metric)


def open_sweep(path: str | Path) -> Sweep:
    """Open a sweep, also while it is running.

    Args:
        path: The sweep's folder or URL.

    Returns:
        The sweep.

    Raises:
        UsageError: If there is no sweep.

    Example:
        ```python
        open_sweep("runs/spirals-sweep").trials.sort_values("val/accuracy")
        ```
    """
    return Sweep(open_sweep_folder(path))
