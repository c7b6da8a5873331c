"""What each checkpoint is requested for, also while another one is written."""

from hooks import State
from hooks.checkpointing.shared.requests import CheckpointRequests, Request
from hooks.position import Position


def test_request_during_a_write_is_for_the_next_checkpoint() -> None:
    state = State(step=1, iteration=1)
    requests = CheckpointRequests()
    requests.request_regular(state, "interval")
    requests.begin_save(state.position)
    state.step = state.iteration = 2
    requests.request_best(state, ["val/loss"])
    first = requests.finish_save("step-00000001")
    assert (first.name, first.request) == ("step-00000001", Request(is_regular=True))

    requests.begin_save(state.position)
    assert requests.newest_name == "step-00000001"
    second = requests.finish_save("step-00000002")
    assert second.request == Request(metrics=["val/loss"])
    assert requests.newest_name == "step-00000002"
    assert state.checkpoint_reasons == ["interval", "best"]


def test_checkpoint_is_found_at_its_position_while_it_is_written_and_later() -> None:
    requests = CheckpointRequests()
    position = Position(step=3, iteration=3)
    assert requests.find_at(position) is None
    requests.begin_save(position)
    written = requests.find_at(position)
    assert written is not None
    assert not written.name
    requests.finish_save("step-00000003")
    assert written.name == "step-00000003"
    skipped = Position(step=3, iteration=4)
    assert requests.find_at(skipped) is None
    assert requests.has_weights_of(skipped)
    assert not requests.has_weights_of(Position(step=4, iteration=5))
