from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.losses.distillation import DistillationLoss
from hooks import Hook, State
from hooks.errors import HookError
from hooks.event_plan import Plan
from hooks.self_supervised.distillation import Distillation, DistillationOutput
from orchestrator.loop.loop import Loop
from tests.tasks import Points, experiment

BIG = f"{__name__}:big_teacher"


def big_teacher() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(5, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3)
    )


def no_teacher() -> int:
    return 3


@dataclass
class Distilled(Points):
    """Points, learned from labels and a teacher."""

    def loss(self, output: DistillationOutput, batch: Any) -> Tensor:
        return DistillationLoss(temperature=2.0, weight=0.5)(output, batch[1])

    def metrics(self, output: DistillationOutput, batch: Any) -> Mapping[str, Tensor]:
        return super().metrics(output.student, batch)


class Seen(Hook):
    """Keeps the teacher's outputs of a phase, and the inputs."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def on_forward(self, state: State) -> None:
        self.inputs.append(state.batch[0])
        self.outputs.append(state.output.teacher)


def test_teacher_runs_in_eval_mode_and_never_changes() -> None:
    hook = Distillation(teacher=BIG)
    seen = Seen()
    reference = big_teacher().eval()
    list(
        Loop(
            Distilled(dropout=0.4, batch_norm=True),
            experiment(),
            {"distillation": hook, "seen": seen},
        ).run()
    )
    for inputs, outputs in zip(seen.inputs, seen.outputs, strict=True):
        torch.testing.assert_close(outputs, reference(inputs))
        assert not outputs.requires_grad
    assert hook.state_dict() == {}


def started(module: nn.Module, **fields: Any) -> State:
    state = State(model=module, module=module, batch=(torch.randn(6, 5),))
    plan = Plan({"distillation": Distillation(**fields)})
    plan.fire("on_start", state)
    state.output = module(state.batch[0])
    plan.fire("on_forward", state)
    return state


@pytest.mark.parametrize("nested", [False, True])
def test_weights_of_a_file_are_loaded_into_a_copy_of_the_model(
    tmp_path: Path, nested: bool
) -> None:
    trained = nn.Linear(5, 3)
    module = nn.Linear(5, 3)
    weights = trained.state_dict()
    torch.save({"model": weights, "updates": 3} if nested else weights, tmp_path / "teacher.pt")
    state = started(module, checkpoint=str(tmp_path / "teacher.pt"))
    torch.testing.assert_close(state.output.teacher, trained(state.batch[0]))
    torch.testing.assert_close(state.output.student, module(state.batch[0]))


def test_file_with_code_is_not_executed(tmp_path: Path) -> None:
    torch.save(nn.Linear(5, 3), tmp_path / "teacher.pt")
    with pytest.raises(HookError, match="weights_only"):
        started(nn.Linear(5, 3), checkpoint=str(tmp_path / "teacher.pt"))


def test_invalid_teacher_error_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a teacher: set `teacher`"):
        Distillation()
    for path in (f"{__name__}:no_teacher", "os:getcwd"):
        with pytest.raises(ValueError, match=f"teacher: '{path}' must be a subclass of torch"):
            Distillation(teacher=path)
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(
        HookError,
        match=r"checkpoint: the weights in '.*' do not fit the teacher: (?s:.*)size mismatch",
    ):
        started(nn.Linear(5, 3), checkpoint=str(tmp_path / "teacher.pt"))
