"""The rows that count of a run: its own, but for those that a later attempt trained again, and those of its leader.

A follower shares the training of another trial, its leader; the rows of that training are in the leader's folder.
Which rows are superseded follows from where the attempts began, never from the files.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from orchestrator.checkpoint.position import Stage
from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.reading import Source, described, recorded, recorded_schema, source_of
from orchestrator.stats.read.recorded_files import recorded_files
from orchestrator.storage import Storage

FIRST = ["rank", "node", "phase", "epoch", "iteration", "step"]
"""Leading columns of a table of rows."""
NEEDED = ("attempt", "rank", "phase", "iteration", "samples")
"""Columns that decide whether a row is superseded."""
_log = logging.getLogger("hookyard")


def counted_rows(storage: Storage, attempts: Sequence[Attempt]) -> Source:
    """Return the rows that count, each once and in no order. `storage` is the run's folder."""
    files = recorded_files(storage, "rows")
    own_schema = described(storage, files)[0]
    schema = pa.unify_schemas([own_schema, _leader_schema(storage, attempts)], promote_options="permissive")
    if not schema.names:
        return Source(ds.dataset(pa.table({name: pa.nulls(0) for name in FIRST})))
    source = source_of(storage, files, schema, _leader_rows(storage, attempts, schema))
    # A condition costs a copy of what is read.
    if len(attempts) > 1 or any(attempt.until is not None for attempt in attempts):
        return Source(source.data, ~superseded(attempts, own_schema.names))
    return source


def columns_of(storage: Storage, attempts: Sequence[Attempt]) -> list[str]:
    """Return the columns of a run's rows, its own and its leader's."""
    return list(dict.fromkeys([*recorded_schema(storage).names, *_leader_schema(storage, attempts).names]))


def _leader_schema(storage: Storage, attempts: Sequence[Attempt]) -> pa.Schema:
    leaders = {attempt.leader.trial for attempt in attempts if attempt.leader}
    for leader in leaders:
        if not (storage.parent / leader).exists():
            _warn_leader_missing(str(storage), str(storage.parent / leader))
    schemas = [recorded_schema(storage.parent / leader) for leader in leaders]
    return pa.unify_schemas([pa.schema([]), *schemas], promote_options="permissive")


def _leader_rows(storage: Storage, attempts: Sequence[Attempt], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of shared training, in the columns of `schema`, with this run's number as `attempt`."""
    for attempt in attempts:
        source = recorded(storage.parent / attempt.leader.trial) if attempt.leader else None
        if source is None or attempt.leader is None or not source.schema.names:
            continue
        ends = [later.position.iteration for later in attempts if later.number > attempt.number]
        ends += [attempt.until] if attempt.until is not None else []
        counts = (pc.field("attempt") == attempt.leader.attempt) & (pc.field("phase") == "train")
        counts &= pc.field("iteration") <= min(ends) if ends else pc.scalar(True)
        columns = [name for name in source.schema.names if name in schema.names]
        for batch in source.batches(columns, counts):
            number = pa.repeat(pa.scalar(attempt.number, batch.schema.field("attempt").type), len(batch))
            table = pa.Table.from_batches([batch])
            yield table.set_column(table.column_names.index("attempt"), "attempt", number)


@cache
def _warn_leader_missing(follower: str, leader: str) -> None:
    _log.warning(
        "The training rows of %s are missing: they are in the folder of its leader, %s. Put both folders side by side.",
        follower,
        leader,
    )


def superseded(attempts: Sequence[Attempt], names: Collection[str] = NEEDED) -> Any:
    """Return the pyarrow expression of the rows that do not count. `names` are the columns that the rows have.

    A training row is superseded if its iteration lies past a later attempt's start. An evaluation row is superseded
    if the training samples seen by then do, or if the checkpoint was made after as many and before the validation.
    Steps would not do: micro-batches share one, and so does an iteration whose step was left out. Ranks of a stream may
    have seen different numbers of samples. A leader's training
    after this run ended, `until`, is not this run's.
    """
    gone: Any = pc.scalar(False)
    is_training, is_test = pc.field("phase") == "train", pc.starts_with(pc.field("phase"), "test")
    samples = pc.field("samples") if "samples" in names else pc.scalar(pa.scalar(None, pa.int64()))
    for attempt in attempts:
        start = attempt.position
        compare = pc.greater_equal if start.stage <= Stage.TRAINED else pc.greater
        seen_again = compare(samples, start.samples)
        for number in {*attempt.samples}:
            ranks = [rank for rank, own in enumerate(attempt.samples) if own == number]
            seen_again = pc.if_else(pc.field("rank").isin(ranks), compare(samples, number), seen_again)
        past = (is_training & (pc.field("iteration") > start.iteration)) | (~is_training & seen_again) | is_test
        gone |= (pc.field("attempt") < attempt.number) & past
        if attempt.until is not None:
            gone |= (pc.field("attempt") == attempt.number) & is_training & (pc.field("iteration") > attempt.until)
    return pc.coalesce(gone, pc.scalar(False))


def superseded_costs(attempts: Sequence[Attempt]) -> Any:
    """Return the same for the hooks' ledger, by the iteration that training had come to."""
    gone: Any = pc.scalar(False)
    for attempt in attempts:
        gone |= (pc.field("attempt") < attempt.number) & (pc.field("iteration") > attempt.position.iteration)
    return gone
