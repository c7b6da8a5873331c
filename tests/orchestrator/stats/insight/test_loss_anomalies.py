from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from orchestrator.stats.insight.loss_anomalies import find_loss_anomalies
from orchestrator.stats.read.query import Rows
from tests.orchestrator.stats.insight.runs import training


def loss(ranks: int = 3, iterations: int = 200) -> np.ndarray:
    draw = np.random.default_rng(2)
    return np.linspace(2, 1, iterations)[:, None] + 0.02 * draw.standard_normal((iterations, ranks))


def test_a_loss_that_is_recorded_only_in_some_iterations_is_no_finding() -> None:
    table = pa.Table.from_pandas(training(3, loss=loss()), preserve_index=False)
    some = pc.if_else(pc.less(pc.bit_wise_and(table["iteration"], 3), 1), table["loss"], None)
    assert not [*find_loss_anomalies(Rows.of(table.set_column(table.column_names.index("loss"), "loss", some)))]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_has_its_first_iteration_and_ranks(value: float) -> None:
    values = loss()
    values[120:, 1] = value
    values[121:] = value
    (finding,) = find_loss_anomalies(Rows.of(training(3, loss=values)))
    assert (finding.numbers["iteration"], finding.numbers["ranks"], finding.numbers["iterations"]) == (121, [1], 80)
    assert finding.weight == 1
    assert "hookyard samples RUN --where 'iteration = 121' --rank 1" in finding.advice
