"""A run as users see it: its files as DataFrames, and what to do with its checkpoints. Does not need
Ray."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.disk.best import Best
from orchestrator.disk.evaluations import PREDICTIONS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.errors import UsageError
from orchestrator.runs.best import find_best_and_divergence, find_modes

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from orchestrator.disk.checkpoints.store import CheckpointStore
    from orchestrator.disk.metadata import EngineName
    from orchestrator.experiment.checked_experiment import CheckedExperiment
    from orchestrator.runs.averaging import Average
    from orchestrator.tables.query import Rows


class Result:
    """Base class of runs and sweeps, as their files describe them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, status={self.status!r})"

    @property
    def name(self) -> str:
        """Name of the run or sweep."""
        return self.folder.name

    @property
    def path(self) -> Path | str:
        """Folder of its files: a Path, or a URL without credentials on an object store."""
        return self.folder.storage.local or str(self.folder)

    @property
    def status(self) -> str:
        """running, finished, stopped (by a hook), interrupted (can be resumed), failed, or lost
        (its driver died)."""
        return find_status(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved experiment."""
        return self.folder.read_experiment()


class Run(Result):
    """A run that is running or has ended. Each access reads the files.

    `open_run` opens one, and `run` returns one. Its `path` is the folder or the URL, `name` and
    `status` are those that `hookyard ls` shows, and `config` is the experiment as YAML has it.

    Example:
        ```python
        run = open_run("runs/spirals")
        run.metrics[["epoch", "val/accuracy"]]
        model = run.load("best")
        ```
    """

    def _repr_html_(self) -> str:
        """Render the status, the best report and the last metrics, for notebooks."""
        from orchestrator.runs.result_html import render_run

        best = f"best {self.best}" if self.best else None
        return render_run(str(self.folder), self.status, [best, self.error], self.metrics)

    @property
    def error(self) -> str | None:
        """Error message of a failed run."""
        return self.folder.read_metadata().error

    @property
    def modes(self) -> dict[str, str]:
        """Direction (`max` or `min`) of each metric, if known."""
        return find_modes(self.folder, self.best)

    @property
    def stats(self) -> pd.DataFrame:
        """All valid rows: one per rank, phase, epoch and iteration.

        A column's suffix is its unit, such as `_s` for seconds and `_per_s` for rates. A column
        that some rows lack is float64 with NaN. Where floats would round its integers (beyond
        2^53), it is pandas' nullable `Int64` or `UInt64`. A column that holds negative integers
        beside those from 2^63 on holds Python's `Decimal` objects. A column that holds integers
        and fractions is float64, and one that holds text on any rank is text.

        Columns:
            * `rank` (int32): The global rank, from 0.
            * `node` (category): The rank's host.
            * `phase` (category): `train`, `val` or `test`.
            * `epoch` (int32): The current epoch, from 0.
            * `iteration` (int32): Micro-batches completed, from 1: in `train` since the run began,
              in `val` and `test` since the epoch began.
            * `step` (int32): Optimizer steps completed by the end of the iteration.
            * `attempt` (int16): The launch of the workers, from 0.
            * `samples` (int64): Training samples of this rank so far.
            * `batch_size` (int32): Samples in the batch.
            * `loss` (float64): The task's loss.
            * `lr`, `lr_1` and so on (float64): Learning rate of each parameter group, in `train`.
            * `step_s` (float64): The whole iteration, from the end of the previous one.
            * `host_step_s` (float64): `step_s` by the host's clock, on CUDA. The host runs ahead of
              the GPU, so it is shorter than `step_s`, except where an iteration waits for the GPU.
            * `microbatches` (float64): Micro-batches of the batch, with `accumulate: auto`.
            * `evaluations` (float64): Evaluations of the loss in a step, with an optimizer that
              needs a closure (LBFGS).
        """
        return self.load_stats()

    def load_stats(
        self, columns: Sequence[str] | None = None, where: str | None = None
    ) -> pd.DataFrame:
        """Return columns of `stats` for the rows that match a condition. Nothing else is read.

        Args:
            columns: Names of columns; by default all.
            where: A condition in SQL, such as `rank = 0 and phase = 'train' and epoch >= 3`. Empty
                cells and NaN are null.

        Returns:
            The rows.

        Raises:
            UsageError: If a column was not recorded, or the condition is invalid.
        """
        from orchestrator.runs.stats import load_rows

        return load_rows(self.folder, columns, where)

    @property
    def hook_costs(self) -> pd.DataFrame:
        """Calls and seconds of each hook at each event on each rank, and the hook's `every`.

        The loop's own work is the hook `(loop)`. Checkpoints at the end of a phase are its event
        `save`, and writing a background checkpoint is its event `write`.

        Columns:
            * `rank`, `hook`, `event`: Whose calls these are.
            * `calls`, `seconds`: Number of calls and their time. On a GPU, it is the GPU time of
              the hook's own work; for calls under 5 µs on average, it is the host's time.
            * `every`: The hook's field of this name, if it has one.
        """
        from orchestrator.runs.stats import load_hook_costs

        return load_hook_costs(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        """A DataFrame with one row per valid report.

        Losses and metrics are means over all samples of all ranks. In val and test each sample
        counts once. In training, a few may count twice, because several ranks repeat samples to
        have the same number.

        Columns:
            * `time`: When the report was made, in UTC.
            * `epoch`, `step`, `iteration`, `samples`, `attempt`: Where it was made.
            * `<phase>/<name>`: Loss and metrics of a phase, such as `train/loss` and
              `val/accuracy`.
        """
        from orchestrator.runs.reports import make_table

        return make_table(self.reports())

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports that no later attempt has repeated, as plain data.

        Returns:
            A mapping for each report, like the rows of `metrics`.
        """
        return [dict(line) for line in self.folder.read_current_reports()]

    @property
    def best(self) -> Best | None:
        """Best report by the main metric, with its checkpoint; None if no metric's direction is
        known."""
        return find_best_and_divergence(self.folder)[0]

    def summary(
        self, by: str | None = None, columns: Sequence[str] | None = None, where: str | None = None
    ) -> pd.DataFrame:
        """Return statistics of each column across all ranks, or a table by rank, node, phase, span
        or hook.

        Args:
            by: `rank`, `node`, `phase`, `span` or `hook`; by default one line per column.
            columns: Names of columns; by default those with a number.
            where: A condition as in `load_stats`. If it does not mention the phase, only `train`
                rows are used, except with `by="phase"` and for evaluations.

        Returns:
            The statistics.

        Raises:
            UsageError: If columns cannot be summarized.

        Example:
            ```python
            open_run("runs/spirals").summary("rank")[["data_wait_s", "step_s"]]
            ```
        """
        from orchestrator.runs.stats import summarize

        return summarize(self.folder, by, columns, where)

    def query(self, sql: str) -> pd.DataFrame:
        """Return the result of an SQL query, in DuckDB's dialect.

        A query reads nothing else, changes nothing, and uses bounded memory.

        Args:
            sql: The query. The table `rows` has the rows of `stats`, in no particular order; empty
                cells are null. A number in the query, such as 0.5, is a float if a float has all
                its digits, else a decimal.

        Returns:
            The result.

        Raises:
            UsageError: If the query is invalid.

        Example:
            ```python
            open_run("runs/spirals").query("select rank, avg(step_s) from rows group by rank")
            ```
        """
        from orchestrator.runs.stats import query_rows

        return query_rows(self.folder, sql)

    def rows(self, where: str | None = None) -> Rows:
        """Return rows for queries on more of them than fit in memory.

        Args:
            where: A condition as in `load_stats`.

        Returns:
            The rows, which are read when they are queried.
        """
        from orchestrator.runs.stats import open_rows

        return open_rows(self.folder, where)

    def samples(self, where: str | None = None, rank: int | None = None) -> pd.DataFrame:
        """Return the samples of each batch: their dataset `index`, the batch's row and its `loss`.

        Samples of an iterable dataset have a `position` instead of an index: how many samples its
        rank had read by then. Evaluations of one lack it and have a row per batch. This imports the
        task and loads its data.

        Args:
            where: A condition as in `load_stats`; by default the rows of `train`.
            rank: Only this rank.

        Returns:
            A row for each sample.

        Raises:
            UsageError: If the data has changed, or if there is no such rank.
        """
        from orchestrator.runs.samples import load_samples

        return load_samples(self.folder, where, rank)

    def checkpoint(self, label: str = "last") -> Path | str:
        """Return the folder of a checkpoint.

        Args:
            label: `last`, `best`, or a name such as `epoch-0003`.

        Returns:
            A Path, or a URL on an object store.

        Raises:
            CheckpointError: If there is no such checkpoint.
        """
        store = self._store()
        folder = store.storage / store.resolve(label)
        return folder.local or str(folder)

    def load(self, label: str = "best") -> nn.Module:
        """Return the task's model with the evaluated weights of a checkpoint.

        If validation used the averages of `ema`, these are the evaluated weights.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.

        Returns:
            The model, on the CPU, in evaluation mode, in plain PyTorch.

        Raises:
            CheckpointError: If the checkpoint is missing, damaged, or does not fit the model, whose
                frozen weights may have changed since.
            UsageError: If the task cannot be imported.
        """
        from orchestrator.runs.model import load_model

        return load_model(self.folder, label)

    def weights(self, label: str = "best") -> dict[str, Tensor]:
        """Return the state dict of `load`'s model, without importing the task.

        With `checkpoint: {weights: trainable}`, it lacks the frozen parameters.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.

        Returns:
            Tensors by name, on the CPU.

        Raises:
            CheckpointError: If the checkpoint is missing or damaged.
        """
        from orchestrator.disk.checkpoints.contents import load_weights

        return load_weights(self._store(), label)

    def average(self, std: float, at: int | None = None, hook: str | None = None) -> Average:
        """Average the weights over a window of any width, from the snapshots of `ema: {average:
        power}`.

        Args:
            std: Width of the average: the standard deviation of the weights' age, as a fraction of
                the training so far.
            at: Step of the snapshot at which it ends; by default the newest one.
            hook: Name of the hook, if several keep snapshots.

        Returns:
            The average; `save` writes it to a file.

        Raises:
            UsageError: If the snapshots do not approximate this width.
        """
        from orchestrator.runs.averaging import make_average

        return make_average(self.folder, std, at, hook)

    def continue_from(
        self, label: str = "best", overrides: Iterable[str] = ()
    ) -> CheckedExperiment:
        """Return an experiment that continues from a checkpoint.

        It continues with weights, optimizer, averages and counters, so `epochs` is the total.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.
            overrides: Values to change, as on the command line.

        Returns:
            The experiment, for `run`.

        Raises:
            UsageError: If the checkpoint is missing or damaged, or nothing is left to train.
            ConfigError: If an override is invalid.

        Example:
            ```python
            experiment = open_run("runs/spirals").continue_from("best", ["epochs=4"])
            longer = run(experiment, local=True)
            ```
        """
        from orchestrator.runs.continuation import make_continuation

        return make_continuation(self.folder, label, overrides)

    def evaluate(
        self,
        label: str = "best",
        phase: Literal["val", "test"] = "val",
        overrides: Iterable[str] = (),
        *,
        workers: int | None = None,
        engine: EngineName | None = None,
        local: bool = False,
        address: str | None = None,
    ) -> Run:
        """Evaluate a checkpoint as the run does, on any number of ranks.

        Args:
            label: `best`, `last`, or a name such as `epoch-0003`.
            phase: The data to evaluate on.
            overrides: Values to change, such as `loader.eval_batch_size=512`.
            workers: Number of ranks; by default the run's.
            engine: As in `run`; by default the run's.
            local: Evaluate in this process, without Ray.
            address: A Ray cluster to join, as in `run`.

        Returns:
            A run of its own, in `evaluations/`, whose `metrics` has one report.

        Raises:
            UsageError: If the checkpoint, the data or the task is missing.
            ConfigError: If an override is wrong or has no effect.
            RunError: If the evaluation fails.

        Example:
            ```python
            open_run("runs/spirals").evaluate("best", local=True).metrics["val/accuracy"]
            ```
        """
        from orchestrator.runs.evaluation import prepare_evaluation

        evaluation = prepare_evaluation(self.folder, label, phase, [*overrides], workers)
        return Run(evaluation.start(engine, address, local=local))

    def predict(
        self,
        data: Any = None,
        label: str = "best",
        phase: str = "val",
        overrides: Iterable[str] = (),
        *,
        workers: int | None = None,
        engine: EngineName | None = None,
        local: bool = False,
        address: str | None = None,
    ) -> Predictions:
        """Write what a checkpoint's model returns for each sample of a dataset, on any number of
        ranks.

        The weights are those of `load`. `Task.predict` says what to keep of each sample.

        Args:
            data: A map-style dataset, or the `module:function` that returns one; by default the
                phase's. The task's own data is not loaded beside it.
            label: `best`, `last`, or a name such as `epoch-0003`.
            phase: The data to predict: `val`, `test`, or a name such as `val/noisy`. The task's
                methods, such as `loader`, see other data under this name.
            overrides: Values to change, such as `loader.eval_batch_size=512`.
            workers: Number of ranks; by default the run's.
            engine: As in `run`; by default the run's.
            local: Predict in this process, without Ray.
            address: A Ray cluster to join, as in `run`.

        Returns:
            The predictions: `load()` returns them as a DataFrame, and `path` is their folder.

        Raises:
            UsageError: If the checkpoint, the data or the task is missing.
            ConfigError: If an override is wrong or has no effect, or no such function exists.
            RunError: If the prediction fails.

        Example:
            ```python
            open_run("runs/spirals").predict(local=True).load()["output"]
            ```
        """
        from orchestrator.runs.prediction import prepare_prediction

        prediction = prepare_prediction(self.folder, data, label, phase, [*overrides], workers)
        return Predictions(Run(prediction.start(engine, address, local=local)))

    def _store(self) -> CheckpointStore:
        from orchestrator.runs.checkpoints import open_checkpoints

        return open_checkpoints(self.folder)


class Predictions:
    """The predictions of a checkpoint for the samples of a dataset, which `Run.predict` returns."""

    def __init__(self, run: Run) -> None:
        self.run = run
        """The run that made them, whose rows have the times."""
        self._storage = run.folder.storage / PREDICTIONS

    @property
    def path(self) -> Path | str:
        """Folder of the Parquet files. The order of their names is that of the dataset."""
        return self._storage.local or str(self._storage)

    def load(self) -> pd.DataFrame:
        """Return all predictions, in the order of the dataset.

        Returns:
            A row for each sample, by its `index`. Cells of tensors with several dimensions are
            arrays.

        Raises:
            UsageError: There are no predictions.
            DamagedFile: A file is damaged.
        """
        from orchestrator.disk.predictions import read_predictions

        frame: pd.DataFrame = read_predictions(self._storage)
        return frame


def open_run(path: str | Path) -> Run:
    """Open a run, also while it is running.

    Args:
        path: The run's folder or URL.

    Returns:
        The run.

    Raises:
        UsageError: If there is no run.
        StorageError: If its storage does not answer.

    Example:
        ```python
        run = open_run("runs/spirals")
        run.stats.groupby("rank")["data_wait_s"].median()
        ```
    """
    folder = RunFolder.open(path)
    if folder.read_metadata().sweep:
        raise UsageError(
            f"{folder} is a sweep, not a single run; its trials are runs: {folder}/trials/trial-0000"
        )
    return Run(folder)
