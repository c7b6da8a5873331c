"""What the rows of trials take from the rows of their sweeps, and of the trials whose training they
share."""

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.tables.run_columns import set_columns

_FROM_SWEEP = ("commit", "dirty")
_FROM_LEADER = ("step_s", "data_wait_share", "samples_per_s")

Tags = list[str] | None


def share_with_trials(table: pa.Table) -> pa.Table:
    """Fill the columns that trials take from their sweeps and leaders; a trial has the tags of its
    sweep besides its own."""
    sweeps = _find_related_rows(table, "sweep")
    leaders = _find_related_rows(table, "leader")
    columns = {name: table[name].take(sweeps) for name in _FROM_SWEEP}
    columns |= {name: table[name].take(leaders) for name in _FROM_LEADER}

    own_tags = table["tags"]
    pairs = zip(own_tags.take(sweeps).to_pylist(), own_tags.to_pylist(), strict=True)
    tags = [_join_tags(of_sweep, own) for of_sweep, own in pairs]
    columns["tags"] = pa.array(tags, own_tags.type)
    return set_columns(table, columns)


def _find_related_rows(table: pa.Table, relation: str) -> pa.ChunkedArray:
    """Return the position of each row's `sweep` or `leader` in the table; the row's own position if
    it has none there."""
    own_positions = pa.array(range(len(table)), pa.int32())
    related_positions = pc.index_in(table[relation], value_set=table["path"])
    return pc.coalesce(related_positions, own_positions)


def _join_tags(of_sweep: Tags, own: Tags) -> Tags:
    """Return the tags of a sweep and those of its trial, each once; None if neither is known."""
    if of_sweep is None and own is None:
        return None
    return list(dict.fromkeys([*(of_sweep or ()), *(own or ())]))


def extend_hours_of_leaders(table: pa.Table) -> pa.Table:
    """Return the table with the GPU hours of each leader until its last follower has ended, because
    its training continues for them."""
    followers = table.filter(pc.is_valid(table["leader"]))
    groups = followers.group_by("leader").aggregate([("total_s", "max")])
    group_of_row = pc.index_in(table["path"], value_set=groups["leader"])
    group_s = groups["total_s_max"].take(group_of_row)

    # The factor is null for a run without followers, and infinite for one that took no time.
    factor = pc.divide(group_s, table["total_s"])
    is_longer = pc.and_(pc.greater(factor, 1.0), pc.is_finite(factor))
    hours = pc.if_else(
        pc.fill_null(is_longer, False),
        pc.multiply(table["gpu_hours"], factor),
        table["gpu_hours"],
    )
    return set_columns(table, {"gpu_hours": hours})
