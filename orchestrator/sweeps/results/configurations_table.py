"""Tables of a sweep's configurations, each from its repeats."""

from typing import Any

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.sweeps.results.ranking import list_configurations, select_candidates
from orchestrator.tables.configurations import Configuration


def make_configurations_table(
    trials: pd.DataFrame,
    metric: str,
    mode: str,
    aggregate: str = "mean",
    repeated_path: str = "seed",
) -> pd.DataFrame:
    """Return one row per configuration, best first: its values, its metrics over repeats, and its
    best trial."""
    configurations = list_configurations(trials, metric, mode, aggregate)
    if not configurations:
        return pd.DataFrame()

    parameters = [name for name in trials if str(name).startswith(CONFIG)]
    paths = [name for name in parameters if name != CONFIG + repeated_path]
    values = trials.groupby("configuration")[paths].first()
    rows = [_describe_configuration(configuration, aggregate) for configuration in configurations]
    table = pd.DataFrame(rows, index=[configuration.number for configuration in configurations])
    if "infeasible" in trials:
        table["infeasible"] = trials["infeasible"].notna().groupby(trials["configuration"]).sum()
    return values.reindex(table.index).join(table).rename_axis("configuration")


def _describe_configuration(configuration: Configuration, aggregate: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "n": configuration.n,
        "mean": configuration.mean,
        "std": configuration.std,
        "low": configuration.low,
        "high": configuration.high,
    }
    if aggregate == "lower_bound":
        row["lower_bound"] = configuration.score
    row["failed"] = configuration.failed
    row["stopped"] = configuration.stopped
    row["best"] = configuration.trials[0] if configuration.trials else None
    return row


def aggregate_repeats(
    trials: pd.DataFrame, metric: str, mode: str, aggregate: str, repeated_path: str = "seed"
) -> pd.DataFrame:
    """Return the candidates; with repeats, one row per configuration, with the aggregated metric
    and without the repeated value."""
    known = select_candidates(trials, metric)
    if "configuration" not in known:
        return known
    column = CONFIG + repeated_path
    first = known.drop(columns=[column], errors="ignore").groupby("configuration").head(1)
    scores = {
        group.number: group.score for group in list_configurations(known, metric, mode, aggregate)
    }
    return first.assign(**{metric: first["configuration"].map(scores)})
