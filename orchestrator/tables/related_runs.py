"""What the rows of runs have from rows of other runs: of their sweeps, and of the trials whose
training they shared."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.disk.statuses import COMPLETE
from orchestrator.tables.constraints import Constraints
from orchestrator.tables.run_columns import TEXT, set_columns

_SHARED = {
    "sweep": ("commit", "dirty"),
    "leader": ("step_s", "data_wait_share", "samples_per_s"),
}
"""What a trial has from its sweep, and from the trial whose training it shared."""


def share_with_trials(table: pa.Table) -> pa.Table:
    """Fill the columns that trials take from their sweeps and leaders; a trial has the tags of its
    sweep besides its own."""
    tags = _join_tags(_take_from(table, "sweep", "tags"), table["tags"])
    columns = {"tags": pa.array(tags, table["tags"].type)}
    for source, names in _SHARED.items():
        columns |= {name: _take_from(table, source, name) for name in names}
    return set_columns(table, columns)


def _take_from(table: pa.Table, source: str, name: str) -> pa.ChunkedArray:
    """Return a column with the value of each row's sweep or leader; with its own, if it has none."""
    own = pa.array(range(len(table)), pa.int32())
    positions = pc.coalesce(pc.index_in(table[source], value_set=table["path"]), own)
    return table[name].take(positions)


def _join_tags(first: pa.ChunkedArray, second: pa.ChunkedArray) -> list[list[str] | None]:
    joined = []
    for tags, own_tags in zip(first.to_pylist(), second.to_pylist(), strict=True):
        is_known = tags is not None or own_tags is not None
        both = [*(tags or ()), *(own_tags or ())]
        joined.append([*dict.fromkeys(both)] if is_known else None)
    return joined


def extend_hours_of_leaders(table: pa.Table) -> pa.Table:
    """Return the table with the GPU hours of each leader until its last follower has ended, because
    its training continues for them."""
    followers = table.filter(pc.is_valid(table["leader"]))
    longest = followers.group_by("leader").aggregate([("total_s", "max")])
    positions = pc.index_in(table["path"], value_set=longest["leader"])
    group_s = longest["total_s_max"].take(positions)
    goes_on = pc.and_(pc.greater(group_s, table["total_s"]), pc.greater(table["total_s"], 0))
    extended = pc.multiply(table["gpu_hours"], pc.divide(group_s, table["total_s"]))
    hours = pc.if_else(pc.fill_null(goes_on, False), extended, table["gpu_hours"])
    return set_columns(table, {"gpu_hours": hours})


def drop_infeasible(table: pa.Table) -> pa.Table:
    """Return the table with what ended trials break of the constraints of their sweeps, and without
    the best values of those trials."""
    broken: list[str | None] = [None] * len(table)
    is_limited = pc.is_valid(table["constraints"])
    for sweep in table.filter(is_limited).select(["path", "constraints"]).to_pylist():
        limits = json.loads(sweep["constraints"])
        for position, cells in _find_measurements(table, sweep["path"], limits):
            broken[position] = Constraints(limits).describe_broken(cells)
    infeasible = pa.array(broken, TEXT)
    best = pc.if_else(pc.is_valid(infeasible), None, table["best"])
    return set_columns(table, {"infeasible": infeasible, "best": best})


def _find_measurements(
    table: pa.Table, sweep: str, names: Iterable[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the position of each ended trial of a sweep, and its values in the columns that the
    table has; leaves out a trial whose leader still runs, because its speed is not known yet."""
    measured = table.select([name for name in names if name in table.column_names])
    is_complete = pc.is_in(table["status"], pa.array(COMPLETE))
    running = table["path"].filter(pc.equal(table["status"], "running"))
    is_measured = pc.and_not(is_complete, pc.is_in(table["leader"], running))
    is_trial = pc.and_(is_measured, pc.equal(table["sweep"], sweep))
    for position in pc.indices_nonzero(is_trial).to_pylist():
        yield position, {name: measured[name][position].as_py() for name in measured.column_names}
