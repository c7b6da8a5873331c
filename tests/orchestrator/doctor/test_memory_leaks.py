from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from orchestrator.doctor.finding import Finding
from orchestrator.doctor.memory_leaks import find_memory_leaks
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import training

GIB = 2**30
ITERATIONS = 800
X = np.arange(ITERATIONS)[:, None]


def held(ranks: int) -> np.ndarray:
    """A GiB with 0.1% of noise, read at every tenth iteration."""
    draw = np.random.default_rng(1)
    return np.where(
        X % 10 == 0, GIB * (1 + 0.001 * draw.standard_normal((ITERATIONS, ranks))), np.nan
    )


def seen(stats: pd.DataFrame) -> Iterator[Finding]:
    return find_memory_leaks(Rows.wrap(stats))


def test_leak_is_found_with_slope_and_rank() -> None:
    """250 MiB in 800 iterations are 312.5 MiB in 1000."""
    rss = held(3)
    rss[:, 1] += 250 * 2**20 * X[:, 0] / ITERATIONS
    (finding,) = seen(training(3, ITERATIONS, rss_bytes=rss))
    numbers = finding.numbers
    assert (numbers["problem"], numbers["rank"], numbers["ranks"]) == ("leak", 1, [1])
    assert numbers["bytes_per_1000_iterations"] == pytest.approx(312.5 * 2**20, rel=0.02)
    assert "rank 1 alone" in finding.sentence


def test_leak_is_found_in_noisy_memory() -> None:
    """30% over the run, beside noise of which each reading has six tenths of the one before, on one
    of 16 ranks."""
    draw = np.random.default_rng(2)
    wandering = np.zeros((ITERATIONS, 16))
    for place in range(1, ITERATIONS):
        wandering[place] = 0.95 * wandering[place - 1] + draw.normal(0, 0.002, 16)
    rss = np.where(X % 10 == 0, GIB * (1 + wandering), np.nan)
    assert list(seen(training(16, ITERATIONS, rss_bytes=rss))) == []
    rss[:, 5] += 0.3 * GIB * X[:, 0] / ITERATIONS
    (finding,) = seen(training(16, ITERATIONS, rss_bytes=rss))
    assert (finding.numbers["problem"], finding.numbers["ranks"]) == ("leak", [5])


def test_leak_is_found_beside_temporary_peaks() -> None:
    """As where validation needs a GiB more now and then, and a rank that was replaced has fewer
    readings."""
    rss = held(2) + GIB * (0.2 * X / ITERATIONS + (X % 120 == 60))
    rss[:150, 1] = np.nan
    (finding,) = seen(training(2, ITERATIONS, rss_bytes=rss))
    assert finding.numbers["ranks"] == [0, 1]


STOPS = {
    "nothing": np.zeros_like(X),
    "warming up": 0.5 * (1 - np.exp(-X / 40)),
    "a step": 0.5 * (X > 500),
    "an early step": 0.5 * (X > 50),
    "two steps": 0.2 * (X > 300) + 0.2 * (X > 600),
    "small steps": 0.02 * (X > 350) + 0.02 * (X > 500) + 0.02 * (X > 650),
    "up and down": 0.3 * np.sin(X / 50),
    "peaks": 1.0 * (X % 120 == 60),
    "falling": -0.3 * X / ITERATIONS,
    "growing and stopping": 0.4 * np.minimum(X, 400) / 400,
}


@pytest.mark.parametrize("shape", STOPS)
def test_growth_that_stops_is_not_a_leak(shape: str) -> None:
    assert list(seen(training(2, ITERATIONS, rss_bytes=held(2) + GIB * STOPS[shape]))) == []


def test_short_run_has_no_leak_finding() -> None:
    rss = np.where(X % 10 == 0, GIB * (1.0 + X / ITERATIONS), np.nan)[:200]
    assert list(seen(training(1, 200, rss_bytes=rss))) == []


def test_memory_that_was_not_read_in_training_does_not_leak() -> None:
    """A column of memory that only the rows of another phase have."""
    assert list(seen(training(2, rss_bytes=np.nan))) == []


def test_memory_of_zero_does_not_leak() -> None:
    assert list(seen(training(2, ITERATIONS, cuda_allocated_bytes=0))) == []


def test_leak_from_zero_is_told_in_bytes() -> None:
    """8 MiB in 800 iterations, after a warm-up without any."""
    grown = 8 * 2**20 * np.maximum(0, X - 300) / ITERATIONS
    (finding,) = seen(training(1, ITERATIONS, cuda_allocated_bytes=grown))
    assert "per 1000 iterations, from 0 B to " in finding.sentence
    assert finding.numbers["grown_share"] is None


def test_leak_is_found_in_spite_of_a_restart() -> None:
    """Each process grows from 1 to 1.3 GiB in 400 iterations."""
    rss = GIB * (1 + 0.3 * (X % 400) / 400)
    stats = training(2, ITERATIONS, rss_bytes=rss)
    (finding,) = seen(stats.assign(attempt=(stats["iteration"] > 400).astype(int)))
    assert finding.numbers["bytes_per_1000_iterations"] == pytest.approx(0.75 * GIB, rel=0.02)


def test_the_only_rank_with_readings_is_named() -> None:
    rss = np.broadcast_to(GIB * (1 + 0.3 * X / ITERATIONS), (ITERATIONS, 2)).copy()
    rss[:, 1] = np.nan
    (finding,) = seen(training(2, ITERATIONS, rss_bytes=rss))
    assert "rank 0 alone" in finding.sentence
