"""A run's result: what is on disk, as DataFrames. Needs no Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hooks.metrics.direction import declared_modes
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.runs.best import Best, best_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from orchestrator.checkpoint.store import CheckpointStore
    from orchestrator.config.sections.experiment import Experiment
    from orchestrator.records.metadata import EngineName
    from orchestrator.runs.averaging import Average
    from orchestrator.stats.read.query import Rows
    from orchestrator.storage import Storage


_LAST_REPORTS = 8
"""Reports in a notebook's table of a run."""


class Result:
    """What a run and a sweep have in common. Reads files alone."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, status={self.status!r})"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.folder.name

    @property
    def path(self) -> str:
        """Where it lies."""
        return str(self.folder)

    @property
    def status(self) -> str:
        """running, finished, stopped (a run that a hook ended), interrupted (can be resumed), failed, or lost (its
        driver died)."""
        return status_of(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved experiment."""
        return self.folder.experiment()


class Run(Result):
    """One run, under way or over. Each table is read when it is asked for."""

    def _repr_html_(self) -> str:
        """Its status, its best report, and the metrics of the last ones; for notebooks."""
        from orchestrator.terminal.notebook import result_html

        metrics = self.metrics
        shown = [
            name
            for name in map(str, metrics)
            if name in ("epoch", "step") or ("/" in name and not name.endswith(("_s", "_bytes")))
        ]
        best = f"best {self.best}" if self.best else None
        return result_html(self.path, self.status, [best, self.error], metrics[shown].tail(_LAST_REPORTS))

    @property
    def error(self) -> str | None:
        """Why the run failed, where it did."""
        return self.folder.metadata().error

    @property
    def modes(self) -> dict[str, str]:
        """`max` or `min`, whichever is better, of each metric of which the experiment or the trial's sweep says it, and
        of that of `best`."""
        best = self.best
        of_best = {best.metric: best.mode} if best else {}
        return {**declared_modes(self.config), **self.folder.metadata().modes, **of_best}

    @property
    def stats(self) -> pd.DataFrame:
        """One row per rank, phase, epoch and iteration of the training that counted: the whole table."""
        return self.load_stats()

    def load_stats(self, columns: Sequence[str] | None = None, where: str | None = None) -> pd.DataFrame:
        """The columns of `stats` asked for, of the rows that meet a condition; only these are read.

        `where` is a condition in SQL, such as `rank = 0 and phase = 'train' and epoch >= 3`. An empty cell and NaN are
        null. Raises UsageError for a column that was not recorded and for a wrong condition.
        """
        from orchestrator.stats.read.tables import load

        return load(self._compacted(), self.folder.attempts(), columns, where)

    @property
    def hook_costs(self) -> pd.DataFrame:
        """Calls and seconds of each hook at each event on each rank, and the hook's `every` in the experiment."""
        from orchestrator.stats.read.tables import load_costs

        costs = load_costs(self._compacted(), self.folder.attempts())
        with suppress(DamagedFile):
            entries = self.config.get("hooks") or {}
            every = {name: entry.get("every") for name, entry in entries.items() if isinstance(entry, Mapping)}
            return costs.assign(every=costs["hook"].map(every).astype(object))
        return costs

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per report of the training that counted; its `time` in UTC."""
        import pandas as pd

        table = pd.DataFrame(self.reports())
        return table.assign(time=pd.to_datetime(table["time"], utc=True)) if "time" in table else table

    def reports(self) -> list[dict[str, Any]]:
        """The reports that counted, as plain data."""
        from orchestrator.records.reports import counted_reports

        return [dict(line) for line in counted_reports(self.folder.reports(), self.folder.attempts())]

    @property
    def best(self) -> Best | None:
        """Its best report by the metric that it is judged by first, and the checkpoint called `best`; None where it is
        not known which way any is better."""
        return best_of(self.folder)

    def summary(
        self, by: str | None = None, columns: Sequence[str] | None = None, where: str | None = None
    ) -> pd.DataFrame:
        """Per column min, median, p95 and max over all ranks and the worst rank; or a table by rank, node, phase, span
        or hook.

        `columns` are the columns to summarize, `where` the rows, as `load_stats` takes them. But for the table by
        phase, rows are those of `train` unless `where` speaks of the phase, of an evaluation all. Raises UsageError for
        what cannot be summarized.
        """
        from orchestrator.stats.aggregate import summaries
        from orchestrator.stats.read.query import check_columns

        if by == "hook":
            if columns is not None or where is not None:
                raise UsageError("what hooks cost is not kept by row: by='hook' takes neither columns nor where")
            return summaries.summarize_hooks(self.hook_costs, summaries.all_seconds(self.rows()))
        makers = {
            None: summaries.summarize,
            "rank": summaries.summarize_ranks,
            "node": summaries.summarize_nodes,
            "phase": summaries.summarize_phases,
            "span": summaries.summarize_spans,
        }
        if by not in makers:
            raise UsageError(f"by={by!r} is none of {', '.join([*filter(None, makers), 'hook'])}")
        rows = self.rows(where if by == "phase" else self._usual_rows(where))
        check_columns(columns or (), rows.columns)
        return makers[by](rows, columns)

    def query(self, sql: str) -> pd.DataFrame:
        """What a query in SQL answers, such as `select rank, avg(step_s) from rows group by rank`, in bounded memory.

        The table `rows` has the rows of `stats`, in no order; an empty cell is null. SQL is DuckDB's, reads nothing
        else and changes nothing. Raises UsageError for what is no query, with the place where it is wrong.
        """
        from orchestrator.stats.read.counted_rows import counted_rows
        from orchestrator.stats.read.query import query

        return query(counted_rows(self._compacted(), self.folder.attempts()), sql)

    def rows(self, where: str | None = None) -> Rows:
        """The rows that count and meet a condition, as `load_stats` takes it, for questions that are larger than
        memory."""
        from orchestrator.stats.read.counted_rows import counted_rows
        from orchestrator.stats.read.query import Rows

        return Rows(counted_rows(self._compacted(), self.folder.attempts()), where)

    def samples(self, where: str | None = None, rank: int | None = None) -> pd.DataFrame:
        """Which samples the batches of some rows had, of one rank or of all: for each its `index` in the dataset of the
        phase, beside `rank`, `phase`, `epoch`, `iteration` and the row's `loss`. A stream has no index: there
        `position` says which of the samples that its rank has read since the run began it was, from 0; of an evaluation
        that is not known, and a row is a batch.

        `where` is as `load_stats` takes it; rows are those of `train` unless it speaks of the phase, of an evaluation
        all. Imports the task, and asks it for its data. Raises UsageError where that is another by now than it was, and
        for a rank that never was.
        """
        from orchestrator.runs.samples import samples
        from orchestrator.stats.read.counted_rows import columns_of

        attempts = self.folder.attempts()
        ranks = max((attempt.world_size for attempt in attempts), default=0)
        if rank is not None and rank >= ranks:
            raise UsageError(
                f"{self.path} has no rank {rank}: there {'was 1' if ranks == 1 else f'were {ranks}'}, counted from 0"
            )
        there = columns_of(self._compacted(), attempts)
        measured = [name for name in ("loss", "samples", "batch_size") if name in there]
        usual = self._usual_rows(where)
        asked = self.load_stats(
            ["rank", "phase", "epoch", "iteration", "attempt", *measured],
            usual if rank is None else _of_rank(rank, usual),
        )
        begins: dict[Any, int] = {}
        if (asked["phase"] != "train").any():
            begins = (
                self.rows()
                .aggregate({"first": "min(iteration)"}, ["attempt", "rank", "phase", "epoch"], "phase <> 'train'")[
                    "first"
                ]
                .to_dict()
            )
        return samples(self.folder, asked, begins)

    def _usual_rows(self, where: str | None) -> str | None:
        """A condition with the rows of `train` alone where it does not speak of the phase; of an evaluation, which has
        others, as it is."""
        return where if self.folder.metadata().evaluates else training_unless_said(where)

    def checkpoint(self, label: str = "last") -> Path | str:
        """The folder of a checkpoint: `last`, `best`, or a name. A Path; a URL where the run is not on this machine.
        Raises CheckpointError where there is none."""
        store = self._store()
        found = store.storage / store.resolve(label)
        return found.local or str(found)

    def load(self, label: str = "best") -> nn.Module:
        """The task's model with the weights of a checkpoint, `best`, `last` or a name: those that were judged, so the
        averages of `ema` where it validates. On the CPU, in evaluation mode, in plain PyTorch, whatever it was trained
        on.

        Imports the task. Raises CheckpointError where there is no such checkpoint, it is damaged, or does not fit what
        the task's model is by now; UsageError where the task cannot be imported.
        """
        from orchestrator.runs.model import load_model

        return load_model(self.folder, label)

    def weights(self, label: str = "best") -> dict[str, Tensor]:
        """The state dict of what `load` gives, without the task's code. Raises CheckpointError as `load` does."""
        return self._store().weights(label)

    def average(self, std: float, at: int | None = None, hook: str | None = None) -> Average:
        """The average of the weights with a std, at the newest snapshot or that `at` a step, from those that `ema:
        {average: power}` kept: its `weights`, and what it was made of; `save` writes a file. `hook` is whose, where
        several keep such.

        Raises UsageError where the snapshots do not make it well, or there are none.
        """
        from orchestrator.runs.averaging import average

        return average(self.folder, std, at, hook)

    def continued(self, label: str = "best", overrides: Iterable[str] = ()) -> Experiment:
        """The run's experiment with `key=value` overrides over it, which `run` goes on with from a checkpoint, `best`,
        `last` or a name: weights, optimizer, averages, counters and all, as a new run. So `epochs` says how many in
        all.

        Raises UsageError where there is no such checkpoint, it is damaged, or nothing is left to train; ConfigError for
        a wrong override.
        """
        from orchestrator.runs.continuation import continued

        return continued(self.folder, label, overrides)

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
        """Measures a checkpoint, `best`, `last` or a name, as the run measures its own, on any number of ranks: a run
        of its own in this one's `evaluations/`, with the report and the rows of it.

        On the run's own engine where none is said. Raises UsageError where there is no such checkpoint or data, or the
        task cannot be imported; ConfigError for an override that is wrong or that no evaluation reads; RunError where
        it fails.
        """
        from orchestrator.runs.evaluation import Evaluation

        return Run(Evaluation.of(self.folder, label, phase, overrides, workers).start(engine, address, local=local))

    def _compacted(self) -> Storage:
        """Where its rows lie; what compacting them has left undone is taken up."""
        from orchestrator.stats.read.recorded_files import warn_lost_rows
        from orchestrator.stats.write.compaction import compact_ended

        compact_ended(self.folder)
        storage, run = self.folder.storage, self.folder.metadata()
        if run.status in ENDED and not storage.exists("stats.parquet"):
            warn_lost_rows(storage, self.folder.attempts())
        return self.folder.storage

    def _store(self) -> CheckpointStore:
        from orchestrator.checkpoint.store import CheckpointStore

        return CheckpointStore(self.folder.kept_checkpoints(), self.name)


def training_unless_said(where: str | None) -> str:
    """The condition with the rows of `train` alone, where it does not speak of the phase."""
    from orchestrator.stats.read.query import mentions

    if where is None:
        return "phase = 'train'"
    return where if mentions(where, "phase") else f"phase = 'train' and ({where}\n)"


def _of_rank(rank: int, where: str | None) -> str:
    return f"rank = {rank}" if where is None else f"rank = {rank} and ({where}\n)"


def open_run(path: str | Path) -> Run:
    """Opens a run that exists; raises UsageError where there is none, StorageError where its storage does not
    answer."""
    folder = RunFolder.open(path)
    if folder.metadata().sweep:
        raise UsageError(f"{folder} is a sweep, not a single run; its trials are runs: {folder}/trials/trial-0000")
    return Run(folder)
