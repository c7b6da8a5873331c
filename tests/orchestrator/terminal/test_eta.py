from __future__ import annotations

from typing import Any

import pytest

from orchestrator.checkpoint.position import Position
from orchestrator.records.metadata import Attempt
from orchestrator.terminal.eta import RunProgress, estimated_progress

EPOCHS = {"epochs": 5, "steps": None, "accumulate": 1, "batch_size": 8}
STEPS = {"epochs": None, "steps": 100, "accumulate": 4, "batch_size": 8}
FIRST = Attempt(0, world_size=2, epoch_iterations=20)


def report(second: int, iteration: int, attempt: int = 0) -> dict[str, Any]:
    return {"attempt": attempt, "time": f"2026-01-01T00:00:{second:02d}Z", "iteration": iteration}


def test_epochs_are_counted_in_their_iterations() -> None:
    found = estimated_progress(EPOCHS, FIRST, RunProgress("train", 1, 25, 25), [], 0.5)
    assert (found.epoch, found.epochs, found.share, found.eta_s) == (1, 5, 25 / 100, 75 * 0.5)


def test_steps_are_counted_in_their_micro_batches() -> None:
    found = estimated_progress(STEPS, FIRST, RunProgress("train", 0, 30, 122), [], 0.5)
    assert (found.steps, found.eta_s) == (100, 70 * 4 * 0.5)
    assert found.share == 122 / (122 + 280)


def test_another_number_of_ranks_goes_on_with_an_epoch_of_its_own_length() -> None:
    """Two ranks did one epoch of 20 iterations and 10 more; four ranks have 10 in an epoch, and 5 of this one are
    done."""
    position = Position(epoch=1, iteration=30, offset=10 * 8 * 2)
    second = Attempt(1, position=position, world_size=4, epoch_iterations=10)
    assert estimated_progress(EPOCHS, second, RunProgress("train", 1, 30, 30), [], 1.0).eta_s == 5 * 10 - 10 - 5
    assert estimated_progress(EPOCHS, second, RunProgress("train", 1, 33, 33), [], 1.0).eta_s == 32


def test_the_pace_is_that_of_the_reports_once_they_are_apart() -> None:
    """Validation and saving are in it: an iteration of 0.1 s takes half a second with its part of them."""
    reached = RunProgress("train", 2, 40, 40)
    assert estimated_progress(EPOCHS, FIRST, reached, [report(0, 20), report(10, 40)], 0.1).eta_s == 60 * 0.5
    assert estimated_progress(EPOCHS, FIRST, reached, [report(0, 20), report(9, 40)], 0.1).eta_s == pytest.approx(6.0)
    assert estimated_progress(
        EPOCHS, FIRST, reached, [report(0, 20, attempt=7), report(10, 40)], 0.1
    ).eta_s == pytest.approx(6.0)


def test_the_time_of_a_test_phase_is_no_pace() -> None:
    assert (
        estimated_progress(
            EPOCHS, FIRST, RunProgress("test", 4, 100, 100), [report(0, 100), report(30, 100)], 0.1
        ).eta_s
        == 0
    )


def test_what_is_not_known_is_not_said() -> None:
    unknown = Attempt(0, world_size=2)
    found = estimated_progress(EPOCHS, unknown, RunProgress("train", 0, 3, 3), [], 0.5)
    assert (found.share, found.eta_s) == (None, None)
    assert estimated_progress(EPOCHS, FIRST, RunProgress(), [], None).eta_s is None
    assert estimated_progress(EPOCHS, FIRST, RunProgress(), [], None).share == 0.0
