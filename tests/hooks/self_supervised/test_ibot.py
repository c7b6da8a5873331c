from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks.errors import HookError
from hooks.self_supervised.ibot import IBOT
from tests.hooks.self_supervised.views import Batch, Miniature, follow

EPOCHS = 3
LENGTH = 2
SCHEDULES: dict[str, Any] = {
    "momentum": 0.8,
    "center_momentum": 0.9,
    "patch_center_momentum": 0.7,
    "temperature": 0.1,
    "warmup_temperature": 0.04,
    "patch_temperature": 0.2,
    "warmup_patch_temperature": 0.05,
    "warmup_epochs": 3,
}


class Encoder(nn.Module):
    """Maps patches (B, N, 5), some of them masked, to outputs of the whole (B, 3) and of each patch
    (B, N, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.zeros(5))
        self.embed = nn.Linear(5, 6)
        self.whole = nn.Linear(6, 3)
        self.patch = nn.Linear(6, 4)

    def forward(self, view: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            view = torch.where(mask.unsqueeze(-1), self.hidden, view)
        tokens = self.embed(view).tanh()
        around = tokens.mean(1)
        return self.whole(around), self.patch(tokens + around.unsqueeze(1))


class Network(nn.Module):
    """All views through the encoder, the first two masked."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, views: list[Tensor], masks: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [
            self.encoder(view, masks[place] if place < 2 else None)
            for place, view in enumerate(views)
        ]


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def batches(count: int, size: int = 8) -> list[Batch]:
    """Two global views of seven patches and a local one of three; about every third patch of the
    former is hidden."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        views = [torch.randn(size, patches, 5, generator=generator) for patches in (7, 7, 3)]
        made.append(
            (
                views,
                torch.arange(size),
                [torch.rand(size, 7, generator=generator) < 0.3 for _ in range(2)],
            )
        )
    return made


def original(
    data: list[Batch], student: Network, teacher: Network
) -> tuple[list[float], Tensor, Tensor]:
    """The losses and the centers of iBOT as its authors publish it (main_ibot.py), in one
    process."""
    center = torch.zeros(1, 3)
    center2 = torch.zeros(1, 1, 4)
    temps = np.linspace(0.04, 0.1, 3)
    temps2 = np.linspace(0.05, 0.2, 3)
    iters = np.arange(EPOCHS * LENGTH)
    momentum_schedule = 1 + 0.5 * (0.8 - 1) * (1 + np.cos(np.pi * iters / len(iters)))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    losses = []
    for it, (views, _, masks) in enumerate(data):
        with torch.no_grad():
            found = [teacher.encoder(view) for view in views[:2]]
        teacher_cls = torch.cat([cls for cls, _ in found])
        teacher_patch = torch.cat([patch for _, patch in found])
        student_cls, student_patch = zip(*student(views, masks), strict=True)
        teacher_cls_c = functional.softmax(
            (teacher_cls - center) / temps[it // LENGTH], dim=-1
        ).chunk(2)
        teacher_patch_c = functional.softmax(
            (teacher_patch - center2) / temps2[it // LENGTH], dim=-1
        ).chunk(2)
        total_loss1 = torch.zeros(())
        n_loss_terms1 = 0
        total_loss2 = torch.zeros(())
        n_loss_terms2 = 0
        for q in range(2):
            for v in range(3):
                if v == q:
                    loss2 = torch.sum(
                        -teacher_patch_c[q]
                        * functional.log_softmax(student_patch[v] / 0.1, dim=-1),
                        dim=-1,
                    )
                    mask = masks[v].float()
                    loss2 = torch.sum(loss2 * mask, dim=-1) / mask.sum(dim=-1).clamp(min=1.0)
                    total_loss2 = total_loss2 + loss2.mean()
                    n_loss_terms2 += 1
                else:
                    loss1 = torch.sum(
                        -teacher_cls_c[q] * functional.log_softmax(student_cls[v] / 0.1, dim=-1),
                        dim=-1,
                    )
                    total_loss1 = total_loss1 + loss1.mean()
                    n_loss_terms1 += 1
        loss = total_loss1 / n_loss_terms1 + total_loss2 / n_loss_terms2
        center = center * 0.9 + teacher_cls.mean(0, keepdim=True) * (1 - 0.9)
        patch_center = torch.sum(teacher_patch.mean(1), dim=0, keepdim=True) / len(teacher_patch)
        center2 = center2 * 0.7 + patch_center * (1 - 0.7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher.encoder, student.encoder, float(momentum_schedule[it]))
        losses.append(loss.item())
    return losses, center, center2[0]


def test_losses_centers_and_teacher_are_those_of_the_original() -> None:
    data = batches(EPOCHS * LENGTH)
    teacher = network()
    losses, center, patch_center = original(data, network(), teacher)
    mine = Miniature(IBOT(**SCHEDULES), "ibot", network=network, epochs=EPOCHS, length=LENGTH)
    mine.train(data)
    assert mine.losses == pytest.approx(losses, abs=1e-5)
    found = mine.hook.state_dict()
    torch.testing.assert_close(found["center"], center)
    torch.testing.assert_close(found["patch_center"], patch_center)
    for name, value in teacher.encoder.state_dict().items():
        torch.testing.assert_close(found["teacher"][name], value, msg=name)
    assert [row["teacher_temperature"] for row in mine.rows] == pytest.approx(
        [0.04, 0.04, 0.07, 0.07, 0.1, 0.1]
    )
    assert [row["teacher_patch_temperature"] for row in mine.rows[::2]] == pytest.approx(
        [0.05, 0.125, 0.2]
    )


@pytest.mark.parametrize(
    ("output", "kind"),
    [([(torch.zeros(8, 3), torch.zeros(8, 7, 4))], "tuple"), ([torch.zeros(8, 3)] * 3, "Tensor")],
)
def test_an_output_without_a_pair_for_each_view_is_an_error(output: Any, kind: str) -> None:
    mine = Miniature(IBOT(), "ibot", network=network)
    mine.state.batch = batches(1)[0]
    mine.state.output = output
    with pytest.raises(
        HookError,
        match=f"must return 3 pairs .*, one for each view, got {len(output)} outputs?: {kind}",
    ):
        mine.plan.fire("on_forward", mine.state)
