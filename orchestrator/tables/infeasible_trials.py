"""The trials in a table of runs that break the constraints of their sweeps."""

import json

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.disk.statuses import COMPLETE
from orchestrator.tables.constraints import Constraints
from orchestrator.tables.run_columns import TEXT, set_columns


def drop_infeasible(table: pa.Table) -> pa.Table:
    """Return the table with what ended trials break of the constraints of their sweeps, and without
    the best values of those trials."""
    broken: list[str | None] = [None] * len(table)
    is_measured = _find_measured(table)
    is_limited = pc.is_valid(table["constraints"])
    for sweep in table.filter(is_limited).select(["path", "constraints"]).to_pylist():
        limits = json.loads(sweep["constraints"])
        is_own_trial = pc.equal(table["sweep"], sweep["path"])
        positions = pc.indices_nonzero(pc.and_(is_measured, is_own_trial))
        columns = [name for name in limits if name in table.column_names]
        # With a column that every table has: pyarrow takes no rows of a table without columns.
        trials = table.select(["path", *columns]).take(positions).to_pylist()
        for position, cells in zip(positions.to_pylist(), trials, strict=True):
            broken[position] = Constraints(limits).describe_broken(cells)

    infeasible = pa.array(broken, TEXT)
    best = pc.if_else(pc.is_valid(infeasible), None, table["best"])
    return set_columns(table, {"infeasible": infeasible, "best": best})


def _find_measured(table: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether its run has ended and its values are final: the speed of a trial
    whose leader still runs is not known yet."""
    is_complete = pc.is_in(table["status"], pa.array(COMPLETE))
    running = table["path"].filter(pc.equal(table["status"], "running"))
    return pc.and_not(is_complete, pc.is_in(table["leader"], running))
