"""The table of a sweep's trials."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.errors import DamagedFile
from orchestrator.runs.reports import make_frame
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_record import TrialRecord

Records = Mapping[str, TrialRecord | DamagedFile]


def make_trials_table(records: Records, metric: str, constraints: Constraints) -> pd.DataFrame:
    """Return one row per trial; of a damaged trial it has only the status and the error.

    Args:
        records: The trials by name.
        metric: The sweep's first metric, whose column comes after the values.
        constraints: The sweep's constraints. If there are any, the column `infeasible` says which
            ones an ended trial breaks.
    """
    rows = [_make_row(name, record, records, metric) for name, record in records.items()]
    if constraints:
        for row in rows:
            row["infeasible"] = constraints.explain_infeasible(row["status"], row)
    if not rows:
        return pd.DataFrame()
    table = make_frame(rows).set_index("trial")
    if table["leader"].isna().all():
        return table.drop(columns="leader")
    return table.assign(leader=table["leader"].fillna(table.index.to_series()))


def _make_row(
    name: str, record: TrialRecord | DamagedFile, records: Records, metric: str
) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": name, "status": record.status}
    if isinstance(record, DamagedFile):
        return {**row, "leader": None, metric: None, "error": str(record)}

    row["leader"] = record.leader
    if record.configuration is not None:
        row["configuration"] = record.configuration
    return {
        **row,
        **make_value_cells(record),
        metric: record.best.get(metric),
        **make_measured_cells(record, record.get_leader(records)),
        "stopped": "; ".join(record.stopped) or None,
        "error": record.error,
    }


def make_value_cells(record: TrialRecord) -> dict[str, Any]:
    """Return a trial's values as table cells by column."""
    return {f"{CONFIG}{path}": _format_cell(value) for path, value in record.values.items()}


def _format_cell(value: Any) -> Any:
    """Format a value for a table cell: mappings, lists and null become text, and the text "null" is
    quoted."""
    is_plain = value not in (None, "null") and not isinstance(value, dict | list)
    return value if is_plain else json.dumps(value)
