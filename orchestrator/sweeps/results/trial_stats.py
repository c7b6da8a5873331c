"""Rows of a sweep's trials, with the trial of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import pandas as pd

from orchestrator.disk.rows.columns import NAME_COLUMNS
from orchestrator.disk.rows.recorded_files import warn_lost_rows
from orchestrator.disk.rows.valid_rows import list_columns
from orchestrator.disk.statuses import COMPLETE
from orchestrator.errors import UsageError
from orchestrator.runs.result import Run
from orchestrator.runs.stats import GROUPS
from orchestrator.storage.omissions import warn_once
from orchestrator.tables.conditions import check_columns, restrict_to_training
from orchestrator.tables.exact_frames import concat_exactly

ReadTable = Callable[[Run, list[str] | None], pd.DataFrame]
"""Reads a table of some columns of a trial, or of all."""


def load_rows(
    runs: Sequence[Run], columns: Sequence[str] | None, where: str | None
) -> pd.DataFrame:
    """Return rows of trials, with the trial as first column; see `Sweep.load_stats`."""

    def load(run: Run, names: list[str] | None) -> pd.DataFrame:
        return run.load_stats(names, where).assign(trial=run.name)

    tables = [table for _, table in _read_tables(runs, columns, load)]
    if not tables:
        return pd.DataFrame(columns=_put_trial_first(columns or ()))

    rows = concat_exactly(tables)
    for name in rows.columns[rows.dtypes == "object"]:
        # Text in some trials, numbers in others; without text, they are decimals
        if any(isinstance(value, str) for value in rows[name]):
            rows[name] = rows[name].map(_to_text, na_action="ignore")
    categories = {*NAME_COLUMNS} & {*rows.columns}
    rows = rows.astype(dict.fromkeys(categories, "category"))
    return rows.reindex(columns=_put_trial_first(rows.columns if columns is None else columns))


def _put_trial_first(columns: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(["trial", *columns])]


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else str(value).removesuffix(".0")


def summarize_trials(
    runs: Sequence[Run], by: str | None, columns: Sequence[str] | None, where: str | None
) -> pd.DataFrame:
    """Return a summary of each trial's rows; see `Sweep.summary`."""
    from orchestrator.tables.query import Rows
    from orchestrator.tables.summaries import summarize_by

    if by is not None and by not in ("trial", *GROUPS):
        raise UsageError(
            f"by must be 'trial', 'rank', 'node', 'phase', 'span' or 'hook', got {by!r}"
        )

    def summarize(run: Run, names: list[str] | None) -> pd.DataFrame:
        if by != "trial":
            return run.summary(by, names, where)
        read = None if names is None else ["rank", *names]
        rows = run.load_stats(read, restrict_to_training(where))
        return summarize_by(by, Rows.wrap(rows.assign(trial=run.name)), names)

    summaries = {run.name: table for run, table in _read_tables(runs, columns, summarize)}
    if not summaries:
        return pd.DataFrame()
    if by == "trial":
        return pd.concat(summaries.values())
    return pd.concat(summaries, names=["trial"])


def _read_tables(
    runs: Sequence[Run], columns: Sequence[str] | None, read: ReadTable
) -> Iterator[tuple[Run, pd.DataFrame]]:
    """Yield each trial that has rows, and its nonempty table of the columns that it has.

    Raises UsageError if no trial has one of the columns, or if reading fails for all trials.
    """
    if isinstance(columns, str):
        check_columns(columns, ())
    if columns is not None:
        columns = [name for name in columns if name != "trial"]

    columns_by_run = _list_columns(runs)
    if columns is not None and columns_by_run:
        known = dict.fromkeys(chain.from_iterable(columns_by_run.values()))
        check_columns(columns, [*known])

    errors: list[UsageError] = []
    for run, names in columns_by_run.items():
        own = None if columns is None else [name for name in columns if name in names]
        try:
            table = read(run, own)
        except UsageError as error:
            errors.append(error)
            continue
        if len(table):
            yield run, table

    if errors and len(errors) == len(columns_by_run):
        raise errors[0]
    if errors:
        warn_once(f"left out {len(errors)} of {len(columns_by_run)} trials: {errors[0]}")


def _list_columns(runs: Sequence[Run]) -> dict[Run, list[str]]:
    """Return the columns of each trial that has rows."""
    recorded = {}
    for run in runs:
        storage = run.folder.storage
        attempts = run.folder.read_attempts()
        names = list_columns(storage, attempts)
        if names:
            recorded[run] = names
        elif run.folder.read_metadata().status in COMPLETE:
            warn_lost_rows(storage, attempts)
    return recorded
