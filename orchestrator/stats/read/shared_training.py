"""The rows of a training that a run shares with others: they lie with its leader, and are read from there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.reading import described, recorded_schema, recorded_tables
from orchestrator.stats.read.recorded_files import recorded_files
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")
_NEEDED = ("attempt", "phase", "iteration")


def columns_of(storage: Storage, attempts: Sequence[Attempt]) -> list[str]:
    """The columns of a run's rows, its own and those that it shares."""
    return list(dict.fromkeys([*recorded_schema(storage).names, *shared_schema(storage, attempts)[0].names]))


def shared_schema(storage: Storage, attempts: Sequence[Attempt]) -> tuple[pa.Schema, int]:
    """Every column of the rows that a run shares, and how many rows there are at most; `storage` is the run's
    folder."""
    leaders = [storage.parent / trial for trial in {attempt.leader.trial for attempt in attempts if attempt.leader}]
    told = [described(place, recorded_files(place, "rows")) for place in leaders]
    for place, (_, rows) in zip(leaders, told, strict=True):
        if not rows and not place.exists():
            _tell_missing(str(storage), str(place))
    schemas = [schema for schema, _ in told]
    return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([]), sum(
        rows for _, rows in told
    )


def shared_tables(
    storage: Storage, attempts: Sequence[Attempt], schema: pa.Schema, where: Any = None
) -> Iterator[pa.Table]:
    """The rows of training that count of a run and lie elsewhere, in the columns of `schema`, with the run's own number
    as `attempt`. `where` is as `recorded_tables` takes it."""
    for attempt in attempts:
        if attempt.leader is None:
            continue
        place = storage.parent / attempt.leader.trial
        files = recorded_files(place, "rows")
        there, _ = described(place, files)
        needed = pa.schema([field for field in there if field.name in schema.names or field.name in _NEEDED])
        counting = (
            (pc.field("attempt") == attempt.leader.attempt)
            & (pc.field("phase") == "train")
            & _counts(attempt, attempts)
        )
        for table in recorded_tables(place, files, needed, methodcaller("filter", counting), where):
            number = pa.repeat(pa.scalar(attempt.number, table.schema.field("attempt").type), len(table))
            yield table.set_column(table.column_names.index("attempt"), "attempt", number)


@cache
def _tell_missing(follower: str, leader: str) -> None:
    _log.warning(
        "the rows of the training of %s are not there: they lie with its leader, %s; put both beside each other",
        follower,
        leader,
    )


def _counts(attempt: Attempt, attempts: Sequence[Attempt]) -> Any:
    """The expression that those rows of training meet which are the run's, and were not done again by a later
    attempt."""
    ends = [later.position.iteration for later in attempts if later.number > attempt.number]
    ends += [attempt.until] if attempt.until is not None else []
    return pc.field("iteration") <= min(ends) if ends else pc.scalar(True)
