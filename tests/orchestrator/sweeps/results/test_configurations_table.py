"""Tables of configurations, against means by hand."""

import pandas as pd
import pytest

from orchestrator.sweeps.results.configurations_table import (
    aggregate_repeats,
    make_configurations_table,
)
from orchestrator.sweeps.results.pareto import find_pareto_front
from orchestrator.sweeps.results.ranking import select_candidates


def test_configurations_count_trials_that_ended_well() -> None:
    columns = ["configuration", "status", "config/seed", "config/width", "config/lr", "val/loss"]
    rows = [
        (0, "finished", 0, 16, 0.5, 0.4),
        (0, "failed", 1, 16, 0.5, 0.9),
        (1, "finished", 0, 32, 0.5, 0.6),
        (1, "stopped", 1, 32, 0.5, 0.8),
    ]
    trials = pd.DataFrame(rows, [f"trial-000{number}" for number in range(4)], columns)
    table = make_configurations_table(trials, "val/loss", "min")
    means = aggregate_repeats(trials, "val/loss", "min", "mean").set_index("configuration")[
        "val/loss"
    ]
    assert table["mean"].to_dict() == means.to_dict() == pytest.approx({1: 0.7, 0: 0.4})
    assert table["config/width"].tolist() == [32, 16]
    assert table["config/width"].dtype == "int64"


def test_trial_that_breaks_a_constraint_takes_its_configuration_out() -> None:
    columns = ["configuration", "status", "val/loss", "step_s", "infeasible"]
    rows = [
        (0, "finished", 0.1, 1.0, None),
        (0, "finished", 0.2, 1.0, "val/loss is 0.2, not <= 0.15"),
        (1, "finished", 0.3, 2.0, None),
        (1, "finished", 0.5, 2.0, None),
    ]
    trials = pd.DataFrame(rows, [f"trial-000{number}" for number in range(4)], columns)
    units = aggregate_repeats(trials, "val/loss", "min", "mean")
    assert units.set_index("configuration")["val/loss"].to_dict() == pytest.approx({1: 0.4})
    front = find_pareto_front(trials, {"val/loss": "min", "step_s": "min"})
    assert front.index.tolist() == ["trial-0002"]
    assert select_candidates(trials.iloc[:2], "val/loss").empty
