import pytest
import torch
from torch import nn

from hooks.state import ScheduledOptimizer, Weights
from orchestrator.loop.loop_state import LoopState


def gan_state() -> LoopState:
    """Return the state of a generator and a discriminator after a backward pass of both."""
    module = nn.ModuleDict({"g": nn.Linear(3, 2), "d": nn.Linear(2, 1)})
    module["d"](module["g"](torch.ones(4, 3))).sum().backward()
    several = {
        name: ScheduledOptimizer(torch.optim.SGD(part.parameters(), lr=0.1))
        for name, part in module.items()
    }
    return LoopState(module=module, several=several, optimizer=several["g"].optimizer)


def test_a_turn_shows_its_optimizer_and_the_gradients_that_it_trains() -> None:
    state = gan_state()
    for name in ("g", "d", "g"):
        state.begin_turn(name)
        gradients = [parameter.grad for parameter in state.module[name].parameters()]  # type: ignore[index]
        assert state.turn == name
        assert state.optimizer is state.optimizers[name]
        assert [id(gradient) for gradient in state.gradients()] == [*map(id, gradients)]
        assert torch.equal(state.gradient_norm(), torch.nn.utils.get_total_norm(gradients))
        state.end_turn()


def test_between_turns_the_state_shows_the_first_optimizer_and_all_gradients() -> None:
    state = gan_state()
    state.begin_turn("d")
    state.gradient_norm()
    state.end_turn()

    gradients = [parameter.grad for parameter in state.module.parameters()]
    assert state.turn is None
    assert state.optimizer is state.optimizers["g"]
    assert torch.equal(state.gradient_norm(), torch.nn.utils.get_total_norm(gradients))


def test_the_norm_is_measured_anew_in_the_next_turn() -> None:
    state = gan_state()
    state.begin_turn("d")
    before = state.gradient_norm()
    state.end_turn()
    for gradient in state.gradients():
        gradient.mul_(2)
    state.begin_turn("d")
    assert torch.equal(state.gradient_norm(), before * 2)


def training_state() -> LoopState:
    return LoopState(phase="train", iteration=13, phase_iteration=3, phase_length=5, stepped=True)


def test_an_evaluation_phase_has_its_own_counters_and_puts_back_those_of_training() -> None:
    state = training_state()
    with state.evaluation_phase("val", length=8, iterations_before=16):
        assert (state.phase, state.stepped) == ("val", False)
        assert (state.phase_iteration, state.phase_length, state.iterations_before) == (0, 8, 16)
        state.phase_iteration = 8
    assert (state.phase_iteration, state.phase_length, state.iteration) == (3, 5, 13)


def test_an_error_in_an_evaluation_leaves_the_place_where_it_happened() -> None:
    state = training_state()
    state.evaluations = {"": Weights(), "ema": Weights()}

    def fail() -> None:
        with state.evaluation_phase("val", length=8):
            for _ in state.iterate_evaluations():
                state.phase_iteration += 4
                if state.evaluation == "ema":
                    raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert (state.phase, state.evaluation, state.phase_iteration) == ("val", "ema", 8)


def test_each_set_of_weights_has_its_label_and_no_label_remains() -> None:
    state = LoopState(evaluations={"": Weights(), "ema": Weights(provider="ema")})
    labels = {weights.provider: state.evaluation for weights in state.iterate_evaluations()}
    assert labels == {"": "", "ema": "ema"}
    assert state.evaluation == ""


def test_a_training_phase_continues_its_epoch() -> None:
    state = training_state()
    state.between_phases = True
    state.begin_training_phase(length=5)
    assert (state.iterations_before, state.phase_iteration, state.phase_length) == (10, 3, 5)
    assert not state.stepped
    assert not state.between_phases


@pytest.mark.parametrize("stepped", [True, False])
def test_an_iteration_counts_its_samples_and_its_step_if_it_made_one(stepped: bool) -> None:
    state = LoopState(world_size=4, step=2, step_iteration=7, iteration=9, stepped=stepped)
    state.complete_iteration(batch_size=6)
    assert (state.iteration, state.samples, state.world_samples) == (10, 6, 24)
    assert (state.step, state.step_iteration) == ((3, 10) if stepped else (2, 7))
