from __future__ import annotations

from types import SimpleNamespace

import pytest

from hooks import State
from orchestrator.checkpoint.position import Position, Stage
from orchestrator.loop.state.cursor import TrainingCursor
from tests.tasks import experiment


class Shares:
    """Training data of 100 samples in batches of 5 a rank, as far as cursor asks for it."""

    def __init__(self, world_size: int) -> None:
        self.train, self.by_index = self, True
        self._together = 5 * world_size

    def length(self, offset: int = 0) -> int:
        return -(-(100 - offset) // self._together)


def cursor_of(world_size: int) -> tuple[TrainingCursor, State]:
    state, data, world = State(), Shares(world_size), SimpleNamespace(world_size=world_size)
    return TrainingCursor(experiment(batch_size=5), state, data.train, world), state


@pytest.mark.parametrize(("epoch", "phase_iteration", "label"), [(0, 0, 0), (0, 3, 0), (1, 0, 0), (1, 3, 1), (2, 0, 1)])
def test_rows_belong_to_the_epoch_under_way_or_to_the_one_that_has_just_ended(
    epoch: int, phase_iteration: int, label: int
) -> None:
    cursor, state = cursor_of(1)
    state.epoch, state.phase_iteration = epoch, phase_iteration
    assert cursor.epoch_label == label


def test_what_is_consumed_is_what_all_ranks_have_had_of_the_epoch() -> None:
    cursor, state = cursor_of(2)
    assert cursor.epoch_length == 10
    state.phase_iteration = 3
    assert cursor.consumed() == cursor.position().offset == 3 * 5 * 2
    cursor.complete_epoch()
    assert (state.epoch, state.epoch_completed, state.phase_iteration) == (1, True, 0)
    assert cursor.consumed() == cursor.position().offset == 0


MID_EPOCH = Position(
    epoch=1,
    step=8,
    iteration=16,
    samples=80,
    offset=60,
    phase_iteration=6,
    eval_iterations={"val": 2},
    stage=Stage.TRAIN,
    stepped=False,
)


@pytest.mark.parametrize("stage", Stage)
def test_where_a_run_of_as_many_ranks_stood_it_stands_again(stage: Stage) -> None:
    position = Position(
        epoch=1,
        step=8,
        iteration=20,
        samples=100,
        eval_iterations={"val": 2},
        stage=stage,
        stepped=stage is not Stage.TRAIN,
    )
    for one in (position, MID_EPOCH):
        cursor, _ = cursor_of(2)
        cursor.restore(one)
        assert cursor.position() == one


def test_an_epoch_completed_before_the_checkpoint_is_known_to_be() -> None:
    for stage, completed in ((Stage.TRAIN, False), (Stage.TRAINED, True)):
        cursor, state = cursor_of(2)
        cursor.restore(Position(epoch=1, stage=stage))
        assert state.epoch_completed is completed


def test_other_ranks_go_on_behind_what_was_consumed() -> None:
    """Two ranks had had 60 of 100 samples. For three, which take 15 at a time, these are four iterations; 40 samples
    are left, which are three."""
    cursor, state = cursor_of(3)
    cursor.restore(MID_EPOCH)
    assert cursor.consumed() == 60
    assert (state.phase_iteration, cursor.epoch_length) == (4, 4 + 3)
    state.phase_iteration += 1
    assert cursor.position().offset == 75


def test_what_does_not_fill_an_iteration_of_other_ranks_counts_too() -> None:
    """An iteration of five ranks takes 25 samples, so 60 are two whole ones and ten samples."""
    cursor, state = cursor_of(5)
    cursor.restore(MID_EPOCH)
    assert cursor.consumed() == 60
    assert (state.phase_iteration, cursor.epoch_length) == (2, 2 + 2)
    cursor.complete_epoch()
    assert (cursor.consumed(), cursor.epoch_length) == (0, 4)


def test_between_epochs_other_ranks_have_nothing_to_make_up_for() -> None:
    cursor, _ = cursor_of(5)
    cursor.restore(Position(epoch=1, iteration=20, stage=Stage.REPORTED))
    assert (cursor.consumed(), cursor.epoch_length) == (0, 4)
