from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from orchestrator.doctor.finding import Finding
from orchestrator.doctor.memory import find_memory_problems
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
    return find_memory_problems(Rows.wrap(stats))


def test_rank_with_more_memory_is_found() -> None:
    rss = held(4)
    rss[:, 2] *= 1.5
    (finding,) = seen(training(4, ITERATIONS, rss_bytes=rss))
    assert (finding.numbers["problem"], finding.numbers["rank"]) == ("imbalance", 2)
    assert finding.numbers["more_bytes"] == pytest.approx(GIB / 2, rel=0.01)
    assert "holds 512 MiB more" in finding.sentence


def test_evenly_spread_ranks_are_not_imbalanced() -> None:
    rss = held(8) * np.linspace(1, 1.8, 8)
    assert list(seen(training(8, ITERATIONS, rss_bytes=rss))) == []


def test_nearly_full_memory_is_found() -> None:
    (finding,) = seen(training(2, 20, system_memory_percent=[[60.0, 95.0]]))
    assert (finding.numbers["problem"], finding.numbers["rank"]) == ("room", 1)
    assert finding.numbers["left_share"] == pytest.approx(0.05)


def test_free_memory_and_missing_columns_give_no_finding() -> None:
    assert list(seen(training(2, 20, system_memory_percent=80.0, cuda_alloc_retries=0))) == []
    assert list(seen(training(2, 20))) == []


def test_allocator_retries_are_found() -> None:
    (finding,) = seen(training(2, 20, cuda_alloc_retries=[[0, 7]]))
    assert (finding.numbers["rank"], finding.numbers["retries"]) == (1, 7)


def test_memory_that_was_not_read_in_training_is_no_finding() -> None:
    """A column of memory that only the rows of another phase have."""
    assert list(seen(training(2, rss_bytes=np.nan))) == []
