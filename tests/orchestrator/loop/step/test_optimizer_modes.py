"""Schedule-free optimizers train, validate and save as their authors ask: in the modes that they
have for it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from hooks import Hook, Interval, ParamScheduler, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.precise_batch_norm import PreciseBatchNorm
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.inference_loops import EvaluationLoop, make_restored_run
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.orchestrator.loop.step.test_turns import Gan
from tests.ranks import on_ranks
from tests.schedule_free import ScheduleFreeSGD
from tests.tasks import Points, PointSet, Rows, experiment, numbers, plain


class Coarse(ScheduleFreeSGD):
    """Loses bits visibly where it changes its mode, as the original does in the last bits."""

    @torch.no_grad()
    def _switch(self, mode: bool) -> None:
        super()._switch(mode)
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(p.bfloat16())


FREE = Component(type="tests.schedule_free:ScheduleFreeSGD", lr=0.5)
COARSE = Component(type=f"{__name__}:Coarse", lr=0.5)
TASK = Points(val=23, dropout=0.3)
STEPS = 7
"""Steps in an epoch of 52 samples in batches of 8."""


def raw(
    epochs: int, max_steps: int | None = None, cls: type[ScheduleFreeSGD] = Coarse
) -> tuple[nn.Module, list[float]]:
    """The loop of the authors: the optimizer changes its mode with the model. Return the model and
    losses of val."""
    torch.manual_seed(0)
    model = TASK.model()
    torch.manual_seed(0)
    data = TASK.data()
    train: Any = data["train"]
    val: Any = data["val"]
    sampler = DistributedSampler(train, num_replicas=1, rank=0, shuffle=True, seed=0)
    loader = DataLoader(train, 8, sampler=sampler, generator=torch.Generator())
    optimizer = cls(model.parameters(), lr=0.5)
    losses = []
    steps = 0
    for _ in range(epochs):
        model.train()
        optimizer.train()
        for points, labels, _ in loader:
            functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == max_steps:
                break
        model.eval()
        optimizer.eval()
        with torch.no_grad():
            losses.append(functional.cross_entropy(model(val.points), val.labels).item())
    return model, losses


class AtEachStep(Hook):
    """Keeps the weights that validation would use after each step; may ask for the end of the run
    in the third."""

    def __init__(self, stops: bool = False) -> None:
        self.stops = stops
        self.evaluated: list[Mapping[str, Any]] = []

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        before = numbers(state.module)
        with state.evaluations[""](state):
            self.evaluated.append(numbers(state.module))
        assert numbers(state.module) == before
        if self.stops and state.step == 3:
            state.request_stop("enough")


def trained(
    root: Path,
    hooks: Mapping[str, Hook] | None = None,
    restore: str = "",
    stop_requested: Callable[[], bool] = lambda: False,
    **fields: Any,
) -> tuple[Loop, list[float], list[Any]]:
    """Train; return the loop, the losses of training and the reports."""
    rows = Rows()
    store = CheckpointStore(Storage(root))
    context = RunContext(recorder=rows, store=store, stop_requested=stop_requested)
    loop = Loop(
        TASK, experiment(**{"epochs": 2, "optimizer": COARSE, **fields}), hooks or {}, context
    )
    if restore:
        loop.restore(restore)
    reports = list(loop.run())
    return loop, [loss for (loss,) in rows.columns("loss", phase="train")], reports


def saving(steps: int) -> dict[str, Hook]:
    return {"checkpoint": Checkpoint(every=Interval(steps, "steps"), keep=None)}


def saved(root: Path, name: str, file: str = "model") -> Any:
    return torch.load(root / name / f"{file}.pt", weights_only=True)


@pytest.mark.parametrize(("cls", "optimizer"), [(ScheduleFreeSGD, FREE), (Coarse, COARSE)])
def test_trains_and_validates_as_a_handwritten_loop(
    cls: type[ScheduleFreeSGD], optimizer: Component, tmp_path: Path
) -> None:
    model, losses = raw(epochs=2, cls=cls)
    loop, _, reports = trained(tmp_path, optimizer=optimizer)
    assert numbers(loop.state.module) == numbers(model)
    assert [report.metrics["val/loss"] for report in reports] == pytest.approx(losses, rel=1e-6)
    assert loop.state.optimizer is not None
    assert [group["train_mode"] for group in loop.state.optimizer.param_groups] == [False]


@pytest.mark.parametrize("steps", [1, 3])
def test_checkpoints_have_the_evaluated_weights_and_change_no_bit(
    steps: int, tmp_path: Path
) -> None:
    whole, losses, _ = trained(tmp_path / "whole")
    loop, same_losses, _ = trained(tmp_path / "saved", saving(steps))
    assert same_losses == losses
    assert numbers(loop.state.module) == numbers(whole.state.module)
    expected, _ = raw(1, max_steps=3)
    name = "step-00000003"
    assert plain(saved(tmp_path / "saved", name)) == numbers(expected)
    optimizer = saved(tmp_path / "saved", name, "optimizer")["optimizer"]
    assert [group["train_mode"] for group in optimizer["param_groups"]] == [False]


@pytest.mark.parametrize("name", ["step-00000003", "epoch-0001", "step-00000009"])
def test_resume_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, losses, reports = trained(tmp_path, {**saving(3), "epochs": Checkpoint(keep=None)})
    resumed, later_losses, later_reports = trained(tmp_path, restore=name)
    assert later_losses == losses[len(losses) - len(later_losses) :]
    assert numbers(resumed.state.module) == numbers(whole.state.module)
    assert later_reports[-1].metrics["val/loss"] == reports[-1].metrics["val/loss"]


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_stopped_run_resumes_bit_for_bit(how: str, tmp_path: Path) -> None:
    """Without the stop the optimizer would not change its mode there, which changes bits. A run that
    has stopped is continued by another one, from a copy of its checkpoint."""
    whole, losses, _ = trained(tmp_path / "whole")
    calls: list[int] = []

    def stop_requested() -> bool:
        calls.append(1)
        return how == "interrupt" and len(calls) >= 3

    hooks: dict[str, Hook] = {"each": AtEachStep(stops=how == "stop")}
    begun, first_losses, _ = trained(tmp_path / "begun", hooks, stop_requested=stop_requested)
    step = begun.state.step
    assert step < STEPS
    expected, _ = raw(1, max_steps=step)
    assert numbers(begun.state.module) == numbers(expected)
    name = f"step-{step:08d}"
    longer = tmp_path / "begun"
    if how == "stop":
        longer = tmp_path / "longer"
        CheckpointStore(Storage(longer)).copy_from(
            CheckpointStore(Storage(tmp_path / "begun")), name
        )
    resumed, later_losses, _ = trained(longer, restore=name)
    assert first_losses + later_losses == losses
    assert numbers(resumed.state.module) == numbers(whole.state.module)


def test_longer_run_continues_where_a_run_in_steps_ended(tmp_path: Path) -> None:
    whole, losses, _ = trained(tmp_path / "whole", epochs=None, steps=10)
    trained(tmp_path / "begun", {"checkpoint": Checkpoint()}, epochs=None, steps=4)
    resumed, later_losses, _ = trained(
        tmp_path / "begun", restore="step-00000004", epochs=None, steps=10
    )
    assert later_losses == losses[4:]
    assert numbers(resumed.state.module) == numbers(whole.state.module)


def test_another_schedule_keeps_the_steps_that_the_optimizer_counted(tmp_path: Path) -> None:
    schedule = {"scheduler": Component(type="CosineAnnealingLR")}
    trained(
        tmp_path, {"checkpoint": Checkpoint(), "schedule": ParamScheduler()}, **schedule, epochs=1
    )
    hooks = {"schedule": ParamScheduler()}
    resumed, losses, _ = trained(tmp_path, hooks, restore="epoch-0001", **schedule, epochs=3)
    assert resumed.state.optimizer is not None
    (group,) = resumed.state.optimizer.param_groups
    assert len(losses) == 2 * STEPS
    assert group["k"] == 3 * STEPS


def test_weights_to_evaluate_are_at_hand_within_a_phase(tmp_path: Path) -> None:
    """As for an export after some steps."""
    each = AtEachStep()
    trained(tmp_path, {"each": each}, epochs=1)
    for step in (1, 3):
        expected, _ = raw(1, max_steps=step)
        assert each.evaluated[step - 1] == numbers(expected)


def test_precise_batch_norm_has_the_statistics_of_the_evaluated_weights(tmp_path: Path) -> None:
    """As the authors ask: the model in training mode, the optimizer in evaluation mode."""
    loop = Loop(
        Points(batch_norm=True, val=9),
        experiment(epochs=1, optimizer=COARSE),
        {"precise": PreciseBatchNorm(52)},
    )
    list(loop.run())
    module: Any = loop.state.module
    with torch.no_grad():
        values = module[0](PointSet(52, False, 0).points)
    torch.testing.assert_close(module[1].running_mean, values.mean(0))
    torch.testing.assert_close(module[1].running_var, values.var(0))


def test_evaluation_of_a_checkpoint_gives_the_metrics_of_the_run(tmp_path: Path) -> None:
    *_, reports = trained(tmp_path, {"checkpoint": Checkpoint(keep=None)})
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    run = make_restored_run(TASK, experiment(optimizer=COARSE), {}, context)
    loop = EvaluationLoop(run, kind="val")
    loop.restore("epoch-0001")
    (report,) = loop.run()
    assert report.metrics["val/loss"] == reports[0].metrics["val/loss"]


def test_one_of_several_optimizers_resumes_bit_for_bit(tmp_path: Path) -> None:
    optimizers = {
        "d": {"type": f"{__name__}:Coarse", "lr": 0.1, "params": "critic.*"},
        "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"},
    }
    task = "tests.orchestrator.loop.step.test_turns:Gan"
    settings = make_experiment(
        {"name": "gan", "task": task, "epochs": 2, "batch_size": 8, "optimizers": optimizers}
    )
    found = []
    for restore in ("", "step-00000003"):
        loop = Loop(
            Gan(), settings, saving(3), RunContext(store=CheckpointStore(Storage(tmp_path)))
        )
        if restore:
            loop.restore(restore)
        list(loop.run())
        found.append(numbers(loop.state.module))
    assert found[0] == found[1]


def sharded(rank: int, world_size: int, root: str) -> Any:
    found = []
    for restore in ("", "step-00000003"):
        context = RunContext(
            World(rank, world_size, rank), Rows(), CheckpointStore(Storage(Path(root)), rank == 0)
        )
        settings = experiment(
            epochs=2, batch_size=6, optimizer=COARSE, workers=Workers(count=2, strategy="fsdp")
        )
        loop = Loop(Points(train=48, val=0), settings, saving(3), context)
        if restore:
            loop.restore(restore)
        list(loop.run())
        found.append(plain(loop.state.module.state_dict()))
    return found


def test_sharded_weights_resume_bit_for_bit(tmp_path: Path) -> None:
    for whole, resumed in on_ranks(sharded, 2, str(tmp_path)):
        assert resumed == whole


def test_only_optimizers_with_both_modes_change_them() -> None:
    loop = Loop(Points(), experiment(), {})
    assert not loop.training.modes
    assert loop.state.evaluations[""].applied is not loop.training.modes.evaluating
