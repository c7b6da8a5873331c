"""The valid rows of a run: all that it recorded, except superseded rows, and its leader's training
rows.

A row is superseded once a later attempt trains its iteration again. That follows from the start
positions of the attempts, never from the files. A follower's training rows are in the folder of its
leader.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hooks.position import Stage
from orchestrator.disk.attempts import Attempt, LeadingAttempt
from orchestrator.disk.rows.columns import merge_schemas
from orchestrator.disk.rows.file_rows import read_row_schema, read_schemas
from orchestrator.disk.rows.reader import make_source, open_recorded
from orchestrator.disk.rows.recorded_files import list_recorded_files
from orchestrator.disk.rows.source import Source
from orchestrator.storage import Storage

LEADING_COLUMNS = ["rank", "node", "phase", "epoch", "iteration", "step"]
"""Leading columns of a table of rows."""
FILTER_COLUMNS = ("attempt", "rank", "phase", "iteration", "samples")
"""Columns that the filter of superseded rows reads."""
_UNREPEATED_EVENTS = [
    "save",
    "write",
    "on_save",
    "on_saved",
    "on_start",
    "on_load",
    "on_end",
    "on_exception",
]
"""Events of hook costs that a later attempt does not repeat."""
_log = logging.getLogger("hookyard")


def open_valid_rows(storage: Storage, attempts: Sequence[Attempt]) -> Source:
    """Return the valid rows, in no particular order. `storage` is the run's folder."""
    files = list_recorded_files(storage, "rows")
    own = read_schemas(storage, files)
    merged = merge_schemas([own.merged, _read_leader_schema(storage, attempts)])
    schemas = own._replace(merged=merged)
    if not schemas.merged.names:
        return Source(ds.dataset(pa.table({name: pa.nulls(0) for name in LEADING_COLUMNS})))
    source = make_source(storage, files, schemas, _read_leader_rows(storage, attempts))
    # A filter copies the rows that are read.
    if len(attempts) > 1 or any(attempt.until is not None for attempt in attempts):
        return Source(source.data, ~make_superseded_filter(attempts, own.merged.names))
    return source


def list_columns(storage: Storage, attempts: Sequence[Attempt]) -> list[str]:
    """Return the columns of a run's rows, its own and its leader's."""
    names = read_row_schema(storage).names + _read_leader_schema(storage, attempts).names
    return list(dict.fromkeys(names))


def _read_leader_schema(storage: Storage, attempts: Sequence[Attempt]) -> pa.Schema:
    leaders = {attempt.leader.trial for attempt in attempts if attempt.leader}
    for leader in leaders:
        if not (storage.parent / leader).exists():
            _warn_leader_missing(str(storage), str(storage.parent / leader))
    return merge_schemas(read_row_schema(storage.parent / leader) for leader in leaders)


def _read_leader_rows(storage: Storage, attempts: Sequence[Attempt]) -> Iterator[pa.Table]:
    """Yield the rows of shared training, with this run's number as `attempt`."""
    for attempt in attempts:
        if attempt.leader is None:
            continue
        source = open_recorded(storage.parent / attempt.leader.trial)
        if not source.schema.names:
            continue
        for batch in source.batches(where=_make_leader_filter(attempt, attempt.leader, attempts)):
            number = pa.scalar(attempt.number, batch.schema.field("attempt").type)
            table = pa.Table.from_batches([batch])
            index = table.column_names.index("attempt")
            yield table.set_column(index, "attempt", pa.repeat(number, len(batch)))


def _make_leader_filter(
    attempt: Attempt, leader: LeadingAttempt, attempts: Sequence[Attempt]
) -> Any:
    """Return a pyarrow filter for the rows of a leader that belong to an attempt of a follower: up
    to its end, or the start of the next attempt."""
    ends = [later.position.iteration for later in attempts if later.number > attempt.number]
    if attempt.until is not None:
        ends.append(attempt.until)
    is_own = (pc.field("attempt") == leader.attempt) & (pc.field("phase") == "train")
    if ends:
        is_own &= pc.field("iteration") <= min(ends)
    return is_own


@cache
def _warn_leader_missing(follower: str, leader: str) -> None:
    _log.warning(
        "The training rows of %s are missing: they are in the folder of its leader, %s. Put both folders side by side.",
        follower,
        leader,
    )


def make_superseded_filter(
    attempts: Sequence[Attempt], names: Collection[str] = FILTER_COLUMNS
) -> Any:
    """Return a pyarrow filter for superseded rows. `names` are the columns that the rows have.

    A training row is superseded if its iteration is past the start of a later attempt. An
    evaluation row is superseded if more training samples were seen by then than at that start; also
    if equally many were, and the checkpoint was saved before the evaluation. Steps cannot replace
    samples, because several iterations may share a step. Ranks that read a stream may have seen
    different numbers of samples. The leader's iterations after `until`, where this run ended, are
    superseded too.
    """
    superseded: Any = pc.scalar(False)
    is_training = pc.field("phase") == "train"
    is_test = pc.starts_with(pc.field("phase"), "test")
    samples = pc.field("samples") if "samples" in names else pc.scalar(pa.scalar(None, pa.int64()))
    for attempt in attempts:
        is_trained_again = is_training & (pc.field("iteration") > attempt.position.iteration)
        is_evaluated_again = ~is_training & _make_evaluated_again_filter(attempt, samples)
        is_past = is_trained_again | is_evaluated_again | is_test
        superseded |= (pc.field("attempt") < attempt.number) & is_past
        if attempt.until is not None:
            is_after_end = is_training & (pc.field("iteration") > attempt.until)
            superseded |= (pc.field("attempt") == attempt.number) & is_after_end
    return pc.coalesce(superseded, pc.scalar(False))


def _make_evaluated_again_filter(attempt: Attempt, samples: Any) -> Any:
    """Return a pyarrow filter for rows that an attempt repeats, by the number of training samples
    at which they were evaluated."""
    start = attempt.position
    compare = pc.greater_equal if start.stage <= Stage.TRAINED else pc.greater
    is_repeated = compare(samples, start.samples)
    for count in {*attempt.samples}:
        ranks = [rank for rank, own in enumerate(attempt.samples) if own == count]
        is_one_of_them = pc.field("rank").isin(ranks)
        is_repeated = pc.if_else(is_one_of_them, compare(samples, count), is_repeated)
    return is_repeated


def make_superseded_cost_filter(attempts: Sequence[Attempt]) -> Any:
    """Return a pyarrow filter for superseded rows of the hook costs, by their training iteration
    and stage; as for rows, also for the leader's after `until`, where this run ended."""
    superseded: Any = pc.scalar(False)
    for attempt in attempts:
        start = attempt.position
        # The later attempt repeats the validation and the report that followed its checkpoint in
        # the same iteration.
        is_later_stage = pc.field("stage") > int(start.stage)
        is_repeated = (pc.field("iteration") == start.iteration) & is_later_stage
        is_repeated &= ~pc.field("event").isin(_UNREPEATED_EVENTS)
        is_past = (pc.field("iteration") > start.iteration) | is_repeated
        superseded |= (pc.field("attempt") < attempt.number) & is_past
        if attempt.until is not None:
            is_after_end = pc.field("iteration") > attempt.until
            superseded |= (pc.field("attempt") == attempt.number) & is_after_end
    return superseded
