from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler

from hooks import HOOKS, Hook, Interval, State
from hooks.training.gradient_clip import GradientClip
from orchestrator.config.sections.experiment import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.step.iterations import clearing
from orchestrator.stats.aggregate.spans import SPANS
from tests.tasks import Points, Rows, experiment, numbers

OWN = Component(type="task")


@dataclass
class TwoRates(Points):
    """One rate for weights, another for biases."""

    rates: tuple[Any, Any] = (1.23456789e-7, 3e-12)

    def optimizer(self, model: nn.Module) -> SGD:
        weights = [parameter for name, parameter in model.named_parameters() if "weight" in name]
        biases = [parameter for name, parameter in model.named_parameters() if "bias" in name]
        return SGD([{"params": weights, "lr": self.rates[0]}, {"params": biases, "lr": self.rates[1]}])


@dataclass
class OneCycle(Points):
    def scheduler(self, optimizer: Any) -> OneCycleLR:
        return OneCycleLR(optimizer, max_lr=1.0, total_steps=20)


class Recorded(Hook):
    """Records a column now and then, and keeps what the last rows say."""

    def __init__(self) -> None:
        self.looked: list[list[Any]] = []

    def on_step(self, state: State) -> None:
        if state.phase_iteration % 3 == 0:
            state.record(third=state.phase_iteration)
        self.looked.append([row["iteration"] for row in state.recent if row["phase"] == "train"][-2:])


def rows_of(task: Points, hooks: dict[str, Hook] | None = None, **fields: Any) -> Rows:
    rows = Rows()
    list(Loop(task, experiment(epochs=1, **fields), hooks or {}, RunContext(recorder=rows)).run())
    return rows


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_row_has_the_rate_that_its_iteration_used(accumulate: int) -> None:
    rows = rows_of(
        OneCycle(),
        {"schedule": HOOKS["param_scheduler"](every=Interval(1, "steps"))},
        accumulate=accumulate,
        scheduler=OWN,
    )
    by_hand = SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    scheduler, expected = OneCycleLR(by_hand, max_lr=1.0, total_steps=20), []
    while len(expected) < 7:
        expected += scheduler.get_last_lr() * accumulate
        by_hand.step()
        scheduler.step()
    assert [lr for (lr,) in rows.columns("lr", phase="train")] == expected[:7]


def test_every_groups_rate_is_recorded_in_full_precision() -> None:
    """Other systems round 1e-6 to zero, or record the first group alone."""
    assert set(rows_of(TwoRates(), optimizer=OWN).columns("lr", "lr_1", phase="train")) == {(1.23456789e-7, 3e-12)}


def test_a_rate_that_is_a_tensor_is_recorded_as_it_was() -> None:
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


def test_what_hooks_record_stands_beside_the_loss_in_their_rows_alone() -> None:
    rows = rows_of(Points(), {"recorded": Recorded()})
    assert [(row["iteration"], row.get("third")) for row in rows.rows if row["phase"] == "train"] == [
        (1, None),
        (2, None),
        (3, 3),
        (4, None),
        (5, None),
        (6, 6),
        (7, None),
    ]
    assert all(isinstance(row["loss"], float) and isinstance(row["iteration"], int) for row in rows.rows)


def test_hooks_look_back_on_the_rows_before_the_present_one() -> None:
    hook = Recorded()
    rows_of(Points(val=0), {"recorded": hook})
    assert hook.looked == [[], [1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_spans_of_real_iterations_add_up_to_their_wall_time(accumulate: int) -> None:
    rows = rows_of(Points(), {"perf_stats": HOOKS["perf_stats"](), "recorded": Recorded()}, accumulate=accumulate).rows
    assert {row["phase"] for row in rows} == {"train", "val"}
    for row in rows:
        assert sum(row[name] for name in SPANS) == pytest.approx(row["step_s"], abs=1e-9)
        assert min(row[name] for name in SPANS) >= 0
        assert min(row["forward_s"], row["loss_s"], row["data_wait_s"]) > 0
        assert (row["backward_s"] > 0) == (row["phase"] == "train")


@dataclass
class Ordered(Hook):
    """Notes the events of an iteration."""

    notes: list[str] = field(default_factory=list)

    def on_backward(self, state: State) -> None:
        self.notes.append("backward")

    def on_update(self, state: State) -> None:
        self.notes.append("update")


def test_the_last_micro_batches_of_an_epoch_make_a_smaller_step() -> None:
    hook = Ordered()
    rows_of(Points(val=0), {"ordered": hook}, accumulate=3)
    assert hook.notes == [*["backward"] * 3, "update", *["backward"] * 3, "update", "backward", "update"]


def test_a_hook_may_put_another_batch_in_the_place_of_the_one_that_was_fetched() -> None:
    class Zeros(Hook):
        def on_batch(self, state: State) -> None:
            points, *rest = state.batch
            state.batch = (torch.zeros_like(points), *rest)

    class Outputs(Hook):
        def __init__(self) -> None:
            self.rows: dict[str, set[tuple[float, ...]]] = {}

        def on_forward(self, state: State) -> None:
            found = {tuple(row) for row in state.output.tolist()}
            self.rows.setdefault(f"{state.phase} {state.step}", set()).update(found)

    hook = Outputs()
    rows_of(Points(), {"zeros": Zeros(), "outputs": hook})
    assert {len(rows) for rows in hook.rows.values()} == {1}
    assert {name.split()[0] for name in hook.rows} == {"train", "val"}


def test_gradients_are_cleared_as_the_optimizer_would_of_all_its_groups() -> None:
    first, second, other = (nn.Linear(2, 1) for _ in range(3))
    optimizer = SGD(first.parameters())
    clear = clearing(optimizer)
    optimizer.add_param_group({"params": list(second.parameters())})
    for module in (first, second, other):
        module(torch.ones(1, 2)).backward()
    clear()
    assert all(parameter.grad is None for module in (first, second) for parameter in module.parameters())
    assert all(parameter.grad is not None for parameter in other.parameters())


@pytest.mark.parametrize("patched", [False, True], ids=["a class's own", "an instance's own"])
def test_an_optimizer_that_clears_its_own_way_is_asked_to(patched: bool) -> None:
    asked: list[bool] = []

    class Keeping(SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            asked.append(set_to_none)

    optimizer = (SGD if patched else Keeping)(nn.Linear(2, 1).parameters())
    if patched:
        optimizer.zero_grad = lambda set_to_none=True: asked.append(set_to_none)
    clearing(optimizer)()
    assert asked == [True]


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


def test_fp16_leaves_out_a_step_that_overflows_and_counts_it_nowhere() -> None:
    task, hook = Points(val=0), Overflow(2, 3)
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


def test_fp16_clips_accumulated_gradients_in_their_true_size() -> None:
    """Groups of 2, 2, 2 and 1 of the 7 micro-batches, unscaled once each."""
    task, rows = Points(val=0), Rows()
    clip = GradientClip(max_norm=0.05)
    loop = Loop(task, experiment(epochs=1, precision="fp16", accumulate=2), {"clip": clip}, RunContext(recorder=rows))
    list(loop.run())

    torch.manual_seed(0)
    model = task.model()
    optimizer, scaler, norms = SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cpu"), []
    dataset: Any = task.data()["train"]
    batches = list(DataLoader(dataset, 8, sampler=DistributedSampler(dataset, num_replicas=1, rank=0, seed=0)))
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
def test_a_step_that_a_hook_leaves_out_changes_nothing_and_is_not_counted(precision: str) -> None:
    hook, trail = SkipOnce(), Trail()
    loop = Loop(Points(val=0), experiment(epochs=1, precision=precision), {"skip": hook, "trail": trail})
    list(loop.run())
    assert (loop.state.iteration, loop.state.step, hook.updates) == (7, 6, 6)
    assert trail.weights[2] == trail.weights[1]
    assert trail.weights[3] != trail.weights[2]
