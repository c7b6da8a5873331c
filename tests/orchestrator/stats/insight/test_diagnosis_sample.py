"""Of a long run the ranks are compared in stretches, and nothing is lost that stands out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orchestrator.stats.insight import diagnose, diagnosis
from orchestrator.stats.insight.diagnosis import sample_iterations
from orchestrator.stats.read.query import Rows
from tests.orchestrator.stats.insight.runs import slower, training

ITERATIONS = 4000
EVERY_40TH = dict.fromkeys(range(17, ITERATIONS, 40), 0.05)
FAULTS = {
    "chronic": ("forward_s", 0.01),
    "drifting": ("data_wait_s", np.linspace(0, 0.03, ITERATIONS)),
    "stalls": ("optimizer_s", EVERY_40TH),
}


@pytest.fixture
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ITERATIONS", 1000)


@pytest.mark.parametrize("pattern", FAULTS)
def test_a_straggler_is_found_in_stretches_as_in_all(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    span, seconds = FAULTS[pattern]
    stats = training(4, ITERATIONS, change=slower(span, 2, seconds))
    (whole,) = diagnose(stats).findings
    monkeypatch.setattr(diagnosis, "MAX_ITERATIONS", 1000)
    found = diagnose(stats)
    (part,) = found.findings
    assert 0.25 <= found.figures["compared_share"] < 0.26
    assert "in their own work (seen in 25." in str(found)
    for name in ("rank", "span", "pattern"):
        assert part.numbers[name] == whole.numbers[name]
    assert part.numbers["lost_s"] == pytest.approx(whole.numbers["lost_s"], rel=0.1)


@pytest.mark.usefixtures("short_look")
def test_steps_of_several_iterations_are_whole_where_a_stretch_begins() -> None:
    """Of four micro-batches each: work of a step is four times that of an iteration in every stretch."""
    stats = training(4, ITERATIONS, change=slower("forward_s", 2, 0.01))
    stats["step"] = stats["iteration"] // 4
    found = diagnose(stats)
    assert found.figures["compared_share"] < 0.27
    (finding,) = found.findings
    assert (finding.numbers["rank"], finding.numbers["span"]) == (2, "forward_s")
    assert finding.numbers["lost_s"] == pytest.approx(0.04, rel=0.05)


def test_a_run_that_is_not_long_is_looked_at_whole() -> None:
    stats = training(2, 100)
    sample = sample_iterations(Rows.wrap(pd.concat([stats, stats.assign(phase="val")])))
    pd.testing.assert_frame_equal(
        sample.rows[["rank", "iteration", "step_s"]], stats[["rank", "iteration", "step_s"]], check_dtype=False
    )
    assert (sample.iterations, sample.ranks, sample.share) == (100, 2, 1.0)
    fewer = sample_iterations(
        Rows.wrap(stats[(stats["iteration"] != 50) & ((stats["rank"] == 0) | (stats["iteration"] != 51))])
    )
    assert (fewer.iterations, fewer.share) == (99, 1.0)
