import pytest
import torch
from torch import nn

from hooks import HOOKS, Hook, State
from hooks.errors import HookError
from hooks.self_supervised.shared.teacher import Teacher, completed_fraction, find_part
from orchestrator.testing import train
from tests.hooks.self_supervised.views import Miniature, pairs, plain


def student() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))


def moved(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))


def following(module: nn.Module) -> Teacher:
    teacher = Teacher()
    teacher.follow(module)
    return teacher


def test_buffers_are_its_own_until_it_copies_the_students() -> None:
    module = student()
    teacher = following(module)
    module(torch.randn(8, 4))
    teacher.update(0.9)
    mean = module[1].running_mean
    assert not mean.eq(0).any()
    assert teacher.module[1].running_mean.eq(0).all()
    teacher.copy_buffers()
    assert torch.equal(teacher.module[1].running_mean, mean)
    assert teacher.module[1].num_batches_tracked == 1


def test_in_training_it_uses_batch_statistics_without_dropout() -> None:
    module = student()
    teacher = following(module)
    batch = torch.randn(16, 4)
    teacher.train(True)
    hidden = nn.functional.batch_norm(module[0](batch), None, None, training=True)
    torch.testing.assert_close(teacher(batch), module[3](hidden))
    assert not teacher(batch).requires_grad
    assert module[2].training  # VISSL's DINO switches off what the student has, too
    assert module[2].p == 0.5
    teacher.train(False)
    before = teacher.state_dict()["1.running_mean"].clone()
    teacher(batch)
    assert torch.equal(teacher.state_dict()["1.running_mean"], before)


def test_loaded_teacher_has_no_gradients_and_follows_the_student() -> None:
    # VISSL's MoCoHook, resumed, forgets to switch the key encoder's gradients off.
    module = student()
    first = following(module)
    moved(module)
    first.train(True)
    first(torch.randn(8, 4))
    first.update(0.5)
    second = Teacher()
    second.load_state_dict(first.state_dict())
    second.load_rank_state_dict({"1.running_mean": torch.full((6,), 3.0)})
    second.follow(module)
    assert second.module[1].running_mean.eq(3).all()
    assert not any(parameter.requires_grad for parameter in second.module.parameters())
    moved(module)
    first.update(0.5)
    second.update(0.5)
    for one, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)


class Shares(Hook):
    """Keeps the completed share of the training at each optimizer step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_update(self, state: State) -> None:
        self.values.append(completed_fraction(state))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("length", ["epochs", "steps"])
def test_completed_fraction_is_that_of_the_steps_before(accumulate: int, length: str) -> None:
    shares = Shares()
    steps = 12 // accumulate
    train(
        {"shares": shares},
        accumulate=accumulate,
        **{"epochs": {"epochs": 2}, "steps": {"steps": steps}}[length],
    )
    assert shares.values == pytest.approx([step / steps for step in range(steps)])


def test_a_part_is_found_by_name() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU())
    assert find_part(module, "0.0") is module[0][0]
    assert find_part(module, "") is module
    with pytest.raises(ValueError, match="Sequential has no part 'trunk'; set '' or one of: 0, 1"):
        find_part(module, "trunk")


# Hooks with a momentum teacher


@pytest.mark.parametrize("method", ["byol", "dino", "moco"])
def test_validation_changes_nothing(method: str) -> None:
    mine = Miniature(HOOKS[method](), method, batch_norm=True)
    mine.train(pairs(2))
    before = plain(mine.hook.state_dict())
    mine.phase("val")
    losses = [mine.forward(pairs(1, seed=9)[0]).item() for _ in range(2)]
    assert plain(mine.hook.state_dict()) == before
    assert losses[0] == losses[1]


@pytest.mark.parametrize("method", ["byol", "dino"])
def test_one_output_for_two_views_is_an_error(method: str) -> None:
    mine = Miniature(HOOKS[method](), method)
    mine.state.batch = pairs(1)[0]
    mine.state.output = [torch.zeros(8, 3)]
    with pytest.raises(HookError, match="1 output for 2 views"):
        mine.plan.fire("on_forward", mine.state)


@pytest.mark.parametrize("method", ["byol", "dino", "moco"])
def test_missing_encoder_error_lists_the_parts(method: str) -> None:
    hook = HOOKS[method](encoder="trunk")
    with pytest.raises(
        HookError, match="has no part 'trunk'; set '' or one of: encoder, predictor"
    ):
        Miniature(hook, method)
