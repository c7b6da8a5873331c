from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from hooks import Hook, HookError, State
from hooks.training.gradient_clip import GradientClip
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, Rows, experiment, numbers

OWN = Component(type="task")


@dataclass
class TwoRates(Points):
    """One rate for weights, another for biases."""

    rates: tuple[Any, Any] = (1.23456789e-7, 3e-12)

    def optimizer(self, model: nn.Module) -> SGD:
        weights = [parameter for name, parameter in model.named_parameters() if "weight" in name]
        biases = [parameter for name, parameter in model.named_parameters() if "bias" in name]
        return SGD(
            [{"params": weights, "lr": self.rates[0]}, {"params": biases, "lr": self.rates[1]}]
        )


def rows_of(task: Points, hooks: dict[str, Hook] | None = None, **fields: Any) -> Rows:
    rows = Rows()
    list(Loop(task, experiment(epochs=1, **fields), hooks or {}, RunContext(recorder=rows)).run())
    return rows


def test_rate_of_every_group_is_recorded_in_full_precision() -> None:
    """Other systems round 1e-6 to zero, or record the first group alone."""
    assert set(rows_of(TwoRates(), optimizer=OWN).columns("lr", "lr_1", phase="train")) == {
        (1.23456789e-7, 3e-12)
    }


def test_rate_that_is_a_tensor_is_recorded_before_it_changes() -> None:
    class Halves(Hook):
        def on_step(self, state: State) -> None:
            if state.phase == "train" and state.optimizer is not None:
                for group in state.optimizer.param_groups:
                    group["lr"].mul_(0.5)

    task = TwoRates(rates=(torch.tensor(1.0), torch.tensor(8.0)))
    rows = rows_of(task, {"halves": Halves()}, optimizer=OWN)
    assert [(float(a), float(b)) for a, b in rows.columns("lr", "lr_1", phase="train")] == [
        (0.5**n, 8 * 0.5**n) for n in range(7)
    ]


# Steps that are left out


class Overflow(Hook):
    """Makes the loss of some iterations infinite."""

    def __init__(self, *iterations: int) -> None:
        self.iterations = iterations
        self.updates: list[int] = []
        self.stepped: list[bool] = []

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.iterations:
            assert state.loss is not None
            state.loss = state.loss * float("inf")

    def on_update(self, state: State) -> None:
        self.updates.append(state.iteration)

    def on_step(self, state: State) -> None:
        self.stepped.append(state.stepped)


def test_fp16_skips_a_step_that_overflows_without_counting_it() -> None:
    task = Points(val=0)
    hook = Overflow(2, 3)
    loop = Loop(task, experiment(epochs=1, precision="fp16"), {"overflow": hook})
    list(loop.run())

    torch.manual_seed(0)
    model = task.model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    dataset: Any = task.data()["train"]
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0)
    for index, (points, labels, _) in enumerate(DataLoader(dataset, 8, sampler=sampler)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(points), labels)
        scaler.scale(loss * float("inf") if index in (2, 3) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert numbers(loop.state.module) == numbers(model)
    assert loop.state.scaler is not None
    assert loop.state.scaler.get_scale() == scaler.get_scale() == 65536 / 4
    assert hook.updates == [0, 1, 4, 5, 6]
    assert hook.stepped == [True, True, False, False, True, True, True]
    assert (loop.state.iteration, loop.state.step) == (7, 5)


def test_fp16_clips_unscaled_accumulated_gradients() -> None:
    """Groups of 2, 2, 2 and 1 of the 7 micro-batches, unscaled once each."""
    task = Points(val=0)
    rows = Rows()
    clip = GradientClip(max_norm=0.05)
    loop = Loop(
        task,
        experiment(epochs=1, precision="fp16", accumulate=2),
        {"clip": clip},
        RunContext(recorder=rows),
    )
    list(loop.run())

    torch.manual_seed(0)
    model = task.model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    dataset: Any = task.data()["train"]
    batches = list(
        DataLoader(dataset, 8, sampler=DistributedSampler(dataset, num_replicas=1, rank=0, seed=0))
    )
    for group in (batches[:2], batches[2:4], batches[4:6], batches[6:]):
        for points, labels, _ in group:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(model(points), labels)
            scaler.scale(loss / len(group)).backward()
        scaler.unscale_(optimizer)
        norms.append(clip_grad_norm_(model.parameters(), 0.05).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert [float(row["grad_norm"]) for row in rows.rows if "grad_norm" in row] == norms
    assert min(norms) > 0.05
    assert numbers(loop.state.module) == numbers(model)


class SkipOnce(Hook):
    """Leaves out one optimizer step."""

    def __init__(self) -> None:
        self.updates = 0

    def on_gradients(self, state: State) -> None:
        if state.iteration == 2:
            state.skip_update("a test")

    def on_update(self, state: State) -> None:
        self.updates += 1


class Trail(Hook):
    """Keeps the weights after every iteration."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Any]] = []

    def on_step(self, state: State) -> None:
        self.weights.append(numbers(state.module))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_step_skipped_by_a_hook_changes_nothing_and_is_not_counted(precision: str) -> None:
    hook = SkipOnce()
    trail = Trail()
    loop = Loop(
        Points(val=0), experiment(epochs=1, precision=precision), {"skip": hook, "trail": trail}
    )
    list(loop.run())
    assert (loop.state.iteration, loop.state.step, hook.updates) == (7, 6, 6)
    assert trail.weights[2] == trail.weights[1]
    assert trail.weights[3] != trail.weights[2]


def test_hook_cannot_record_a_column_of_the_loop() -> None:
    class Records(Hook):
        def __init__(self, column: str) -> None:
            self.column = column

        def on_forward(self, state: State) -> None:
            state.record(**{self.column: 1.0})

    columns = set(chain.from_iterable(rows_of(Points()).rows))
    assert {"loss", "lr", "step_s"} < columns
    for column in columns | {"trial", "superseded"}:  # of a sweep's table, and of the files
        with pytest.raises(
            HookError, match=f"the loop records the column `{column}`; use another name, such as"
        ):
            rows_of(Points(), {"records": Records(column)})
