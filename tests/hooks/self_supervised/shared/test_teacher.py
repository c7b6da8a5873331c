"""Momentum copies of a module."""

import torch
from torch import nn

from hooks.self_supervised.shared.teacher import Teacher


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
