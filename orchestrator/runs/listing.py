"""All runs of a storage as one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def list_runs(storage: str | Path = "runs") -> pd.DataFrame:
    """Return one row for each run, sweep, trial and evaluation in a storage, the oldest first.

    Only runs that have changed since the last call are read. The rows of the others come from the
    file `.runs.parquet` of the storage, which may be deleted at any time.

    A value of the configuration has the column `config/<path>`. A column is text if its values have
    several types. Empty cells are those of values that a run does not have.

    Columns:
        * `name`, `path`: Name and location.
        * `kind`: `run`, `sweep`, `trial`, `evaluation` or `prediction`.
        * `status`: As in `hookyard ls`; also `damaged`, and `newer` for a run of a later version of
          Hookyard.
        * `best`, `metric`, `mode`: Best value, and the metric that it is of. That of a sweep is its
          best trial's, or with `repeats` the mean of its best configuration.
        * `epoch`, `checkpoint`: Epoch of the best report, from 0, and the best checkpoint, which is
          known once the run has ended.
        * `diverged`: Which loss or metric is NaN or infinite.
        * `infeasible`: Which of its sweep's constraints a trial breaks. Such a trial has no `best`.
        * `tags`, `notes`: A trial has the tags of its sweep.
        * `sweep`: Name of a trial's sweep.
        * `evaluates`: Checkpoint and phase of an evaluation.
        * `started`, `ended`: Times in UTC.
        * `reports`, `attempts`, `ranks`: Their numbers.
        * `total_s`: Time that it ran, without pauses; until its last report if it is running or
          lost.
        * `gpu_hours`: `total_s` in hours, times its GPUs, which are a mean over the time of its
          attempts if their numbers differ. Empty for a sweep, whose trials have it, and 0 for a
          trial that followed another one's training. The leader has the hours until the last of
          them ended.
        * `train_s`, `step_s`, `samples_per_s`, `data_wait_share`, `process_peak_rss_bytes`,
          `peak_allocated_bytes`, `peak_reserved_bytes`, `gpu_utilization_percent`, `gpu_power_w`:
          As in `Sweep.trials`, once the run has ended.
        * `stopped`, `error`: Why it ended early, or failed.
        * `commit`, `dirty`: Commit of the code, and whether files differed from it. A trial has
          those of its sweep.
        * `<phase>/<name>`: Metrics at the best report; all metrics of an evaluation.
        * `last/<phase>/<name>`: Last reported value of each metric.
        * `config/<path>`: The resolved experiment, with a trial's values.

    Args:
        storage: The folder or URL that holds the runs.

    Returns:
        The table.

    Raises:
        UsageError: If the storage is not a folder of runs.

    Example:
        ```python
        runs = list_runs("runs")
        runs[runs["kind"] == "run"].sort_values("best")[["name", "best", "config/optimizer.lr"]]
        ```
    """
    from orchestrator.disk.listing import open_storage
    from orchestrator.tables.exact_frames import make_lists, to_frame
    from orchestrator.tables.run_index import load_runs

    table = to_frame(load_runs(open_storage(storage)))
    return table.assign(tags=make_lists(table["tags"]))


def query_runs(storage: str | Path, sql: str) -> pd.DataFrame:
    """Return the result of an SQL query on the table `runs` of `list_runs`, in DuckDB's dialect.

    A query that names the column `tag` sees a run once for each of its tags.

    Raises UsageError if the query is invalid, or the storage is not a folder of runs.
    """
    from orchestrator.disk.listing import open_storage
    from orchestrator.tables.run_index import load_runs
    from orchestrator.tables.user_query import query_table_of_runs

    return query_table_of_runs(load_runs(open_storage(storage)), sql)
