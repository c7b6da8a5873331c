"""The table of a sweep's trials."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.errors import DamagedFile
from orchestrator.sweeps.results.analysis import CONFIG
from orchestrator.tables.trial_index import TrialRecord

Records = Mapping[str, TrialRecord | DamagedFile]


def make_trials_table(records: Records, metric: str) -> pd.DataFrame:
    """Return one row per trial; of a damaged trial it has only the status and the error.

    Args:
        records: The trials by name.
        metric: The sweep's first metric, whose column comes after the values.
    """
    rows = [_make_row(name, record, records, metric) for name, record in records.items()]
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).set_index("trial")
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
        **_get_metrics(record.best),
        **_get_metrics(record.last, "last/"),
        "epoch": record.best.get("epoch"),
        "diverged": record.diverged or None,
        "reports": record.reports,
        **_get_shared_speed(records.get(record.leader or "")),
        **record.usage,
        "total_s": record.wall_s,
        "stopped": "; ".join(record.stopped) or None,
        "error": record.error,
    }


def _get_metrics(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in report.items() if "/" in name}


def _get_shared_speed(leader: TrialRecord | DamagedFile | None) -> dict[str, float]:
    """Return the speed of a shared training run. Its time is only in the leader's row, so that sums
    are correct."""
    if not isinstance(leader, TrialRecord):
        return {}
    speed = ("step_s", "data_wait_share", "samples_per_s")
    return {name: leader.usage[name] for name in speed if name in leader.usage}


def make_value_cells(record: TrialRecord) -> dict[str, Any]:
    """Return a trial's values as table cells by column."""
    return {f"{CONFIG}{path}": _format_cell(value) for path, value in record.values.items()}


def _format_cell(value: Any) -> Any:
    """Format a value for a table cell: mappings, lists and null become text, and the text "null" is
    quoted."""
    is_plain = value not in (None, "null") and not isinstance(value, dict | list)
    return value if is_plain else json.dumps(value)
