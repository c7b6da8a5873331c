"""Positions and their names: a step alone does not tell where a run is."""

from hooks import State
from hooks.position import Position, Stage


def test_positions_are_ordered_by_iteration_and_then_by_stage() -> None:
    ordered = [
        Position(iteration=3),
        Position(iteration=3, stage=Stage.TRAINED),
        Position(iteration=3, stage=Stage.REPORTED),
        Position(iteration=4),
    ]
    assert sorted([*ordered[2:], *ordered[:2]]) == ordered
    assert len({*ordered}) == 4


def test_positions_of_one_step_differ_but_have_the_same_weights() -> None:
    stepped = Position(step=3, iteration=3)
    skipped = Position(step=3, iteration=4)
    assert stepped != skipped
    assert stepped.has_same_weights(skipped)
    assert not stepped.has_same_weights(Position(step=4, iteration=4))


def test_evaluation_does_not_change_the_position() -> None:
    state = State(phase="train", iteration=5, between_phases=True)
    trained = state.position
    state.phase = "val"
    state.phase_iteration = 7
    state.stepped = False
    assert state.position == trained
    assert trained != State(iteration=5).position, "the end of a phase may change buffers"


def test_name_of_a_position_is_unique() -> None:
    places = {
        "step-00000000": State(),
        "step-00000003": State(step=3, iteration=9, step_iteration=9, phase_iteration=9),
        "step-00000003-iteration-00000012": State(
            step=3, iteration=12, step_iteration=9, phase_iteration=12
        ),
        "epoch-0001": State(step=3, iteration=12, step_iteration=9, epoch=1),
    }
    assert [*places] == [state.milestone for state in places.values()]
    assert places["epoch-0001"].step_name == "step-00000003-iteration-00000012"
