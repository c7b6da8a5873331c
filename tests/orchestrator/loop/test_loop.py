from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from hooks import EVENTS, Hook, Rhythm, State
from hooks.training.sampler_seed import DistSamplerSeed
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import ConfigError, WorkersDisagree
from orchestrator.loop import world as world_module
from orchestrator.loop.loop import Loop, Report
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, Seen, experiment, numbers


def raw_training(
    task: Points,
    *,
    epochs: int = 2,
    batch_size: int = 8,
    accumulate: int = 1,
    max_steps: int | None = None,
    seed: int = 0,
    new_order: bool = False,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Training without Hookyard: torch's sampler, loader and optimizer in three plain loops."""
    torch.manual_seed(seed)
    model = task.model()
    torch.manual_seed(seed)
    dataset: Any = task.data()["train"]
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler, generator=torch.Generator())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = 0
    for epoch in range(epochs):
        if new_order:
            sampler.set_epoch(epoch)
        batches = list(loader)
        groups = [batches[begin : begin + accumulate] for begin in range(0, len(batches), accumulate)]
        for group in groups:
            for points, labels, _ in group:
                with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                    loss = functional.cross_entropy(model(points), labels)
                (loss / len(group)).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == max_steps:
                return model
    return model


def run(task: Points, hooks: dict[str, Hook] | None = None, **fields: Any) -> Loop:
    loop = Loop(task, experiment(**fields), hooks or {})
    list(loop.run())
    return loop


# Against a raw loop


@pytest.mark.parametrize("task", [Points(), Points(dropout=0.5, batch_norm=True)], ids=["plain", "dropout and batch norm"])
def test_it_trains_as_a_raw_loop_does(task: Points) -> None:
    assert numbers(run(task).state.module) == numbers(raw_training(task))


def test_with_sampler_seed_each_epoch_has_the_order_of_torchs_sampler() -> None:
    loop = run(Points(), {"sampler_seed": DistSamplerSeed()}, epochs=3, seed=4)
    assert numbers(loop.state.module) == numbers(raw_training(Points(), epochs=3, seed=4, new_order=True))
    assert numbers(loop.state.module) != numbers(raw_training(Points(), epochs=3, seed=4))


def test_accumulation_averages_each_group_also_the_smaller_last_one() -> None:
    # 52 samples in batches of 8 are 7 micro-batches: groups of 3, 3 and 1
    loop = run(Points(), accumulate=3)
    assert numbers(loop.state.module) == numbers(raw_training(Points(), accumulate=3))
    assert (loop.state.iteration, loop.state.step) == (14, 6)


def test_a_run_measured_in_steps_ends_in_the_middle_of_an_epoch() -> None:
    loop = run(Points(), {"sampler_seed": DistSamplerSeed()}, steps=9)
    assert numbers(loop.state.module) == numbers(raw_training(Points(), max_steps=9, new_order=True))
    assert (loop.state.epoch, loop.state.step, loop.state.samples) == (1, 9, 52 + 16)


def test_bf16_is_torchs_autocast() -> None:
    loop = run(Points(), precision="bf16")
    assert numbers(loop.state.module) == numbers(raw_training(Points(), dtype=torch.bfloat16))
    assert numbers(loop.state.module) != numbers(raw_training(Points()))


def test_an_epoch_without_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"drop_last.*5 samples on 1 ranks.*batch_size 8"):
        Loop(Points(train=5), experiment(loader={"drop_last": True}), {})


# fp16


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
    loop = run(task, {"overflow": hook}, epochs=1, precision="fp16")

    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
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


class SkipOnce(Hook):
    """Leaves out one optimizer step."""

    def __init__(self) -> None:
        self.updates = 0

    def on_gradients(self, state: State) -> None:
        if state.iteration == 2:
            state.skip_update("a test")

    def on_update(self, state: State) -> None:
        self.updates += 1


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_that_a_hook_leaves_out_changes_nothing_and_is_not_counted(precision: str) -> None:
    hook, trail = SkipOnce(), Trail()
    loop = run(Points(val=0), {"skip": hook, "trail": trail}, epochs=1, precision=precision)
    assert (loop.state.iteration, loop.state.step, hook.updates) == (7, 6, 6)
    assert trail.weights[2] == trail.weights[1]
    assert trail.weights[3] != trail.weights[2]


class Trail(Hook):
    """Keeps the weights after every iteration."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Any]] = []

    def on_step(self, state: State) -> None:
        self.weights.append(numbers(state.module))


# Events


def diary(lines: list[str], asks: Callable[[str, State], None] = lambda event, state: None) -> Hook:
    """A hook that writes down every event with phase, epoch, iteration, step and samples, and may ask for something."""

    def noting(event: str) -> Callable[..., None]:
        def note(self: Hook, state: State, *rest: Any) -> None:
            lines.append(f"{event} {state.phase} {state.epoch} {state.iteration} {state.step} {state.samples}".replace("  ", " - "))
            asks(event, state)

        return note

    return type("Diary", (Hook,), {event: noting(event) for event in EVENTS})()


def test_events_fire_in_order_and_counters_say_what_is_completed(tmp_path: Path) -> None:
    """Five samples in batches of two, accumulated by two: steps of two micro-batches and of one. A checkpoint is asked
    for after the first step, after training and after validation."""

    def ask(event: str, state: State) -> None:
        if (event == "on_step" and state.phase == "train" and state.step == 1) or event == "on_phase_end":
            state.request_checkpoint("a test")

    lines: list[str] = []
    loop = Loop(
        Points(train=5, val=3, test=2),
        experiment(epochs=1, batch_size=2, accumulate=2),
        {"diary": diary(lines, ask)},
        store=CheckpointStore(Storage(tmp_path)),
    )
    for report in loop.run():
        lines.append(f"report {'final' if report.final else 'not final'}")
    assert lines == [
        "on_start - 0 0 0 0",
        "on_phase_start train 0 0 0 0",
        # the first micro-batch
        "on_iteration_start train 0 0 0 0",
        "on_batch train 0 0 0 0",
        "on_forward train 0 0 0 0",
        "on_loss train 0 0 0 0",
        "on_backward train 0 0 0 0",
        "on_step train 0 1 0 2",
        # the second makes the step
        "on_iteration_start train 0 1 0 2",
        "on_batch train 0 1 0 2",
        "on_forward train 0 1 0 2",
        "on_loss train 0 1 0 2",
        "on_backward train 0 1 0 2",
        "on_gradients train 0 1 0 2",
        "on_update train 0 1 0 2",
        "on_step train 0 2 1 4",
        "on_save train 0 2 1 4",
        "on_saved train 0 2 1 4",
        # the last one is a step of its own
        "on_iteration_start train 0 2 1 4",
        "on_batch train 0 2 1 4",
        "on_forward train 0 2 1 4",
        "on_loss train 0 2 1 4",
        "on_backward train 0 2 1 4",
        "on_gradients train 0 2 1 4",
        "on_update train 0 2 1 4",
        "on_step train 0 3 2 5",
        "on_phase_end train 1 3 2 5",
        "on_save train 1 3 2 5",
        "on_saved train 1 3 2 5",
        "on_phase_start val 1 3 2 5",
        "on_iteration_start val 1 3 2 5",
        "on_batch val 1 3 2 5",
        "on_forward val 1 3 2 5",
        "on_loss val 1 3 2 5",
        "on_step val 1 3 2 5",
        "on_iteration_start val 1 3 2 5",
        "on_batch val 1 3 2 5",
        "on_forward val 1 3 2 5",
        "on_loss val 1 3 2 5",
        "on_step val 1 3 2 5",
        "on_phase_end val 1 3 2 5",
        "on_save val 1 3 2 5",
        "on_saved val 1 3 2 5",
        "on_report val 1 3 2 5",
        "report not final",
        "on_phase_start test 1 3 2 5",
        "on_iteration_start test 1 3 2 5",
        "on_batch test 1 3 2 5",
        "on_forward test 1 3 2 5",
        "on_loss test 1 3 2 5",
        "on_step test 1 3 2 5",
        "on_phase_end test 1 3 2 5",
        "on_report test 1 3 2 5",
        "report final",
        "on_end test 1 3 2 5",
    ]


def test_on_load_comes_before_on_start(tmp_path: Path) -> None:
    def ask(event: str, state: State) -> None:
        if event == "on_phase_end" and state.epoch == 1:
            state.request_checkpoint("a test")

    store = CheckpointStore(Storage(tmp_path))
    first = Loop(Points(val=0), experiment(), {"diary": diary([], ask)}, store=store)
    list(first.run())
    lines: list[str] = []
    second = Loop(Points(val=0), experiment(), {"diary": diary(lines)}, store=store)
    second.restore("epoch-0001")
    list(second.run())
    # stored after training and before the report
    assert lines[:4] == ["on_load train 1 7 7 52", "on_start train 1 7 7 52", "on_report train 1 7 7 52", "on_phase_start train 1 7 7 52"]
    assert lines[-1] == "on_end train 2 14 14 104"


class Fails(Hook):
    def __init__(self, event: str) -> None:
        self.event = event
        self.errors: list[str] = []

    def on_load(self, state: State, checkpoint: Any) -> None:
        if self.event == "on_load":
            raise ValueError("no")

    def on_gradients(self, state: State) -> None:
        if self.event == "on_gradients":
            raise ValueError("no")

    def on_exception(self, state: State, error: BaseException) -> None:
        self.errors.append(str(error))


def test_a_failure_is_shown_to_on_exception_and_raised() -> None:
    hook = Fails("on_gradients")
    loop = Loop(Points(), experiment(), {"bad": hook})
    with pytest.raises(RuntimeError, match="hook 'bad' failed in on_gradients on rank 0: ValueError: no"):
        list(loop.run())
    assert hook.errors == ["hook 'bad' failed in on_gradients on rank 0: ValueError: no"]


def test_a_failure_in_on_load_is_shown_to_on_exception_too(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    first = Loop(Points(), experiment(), {}, store=store)
    reports = first.run()
    next(reports)
    path = first.save()
    assert path is not None
    hook = Fails("on_load")
    with pytest.raises(RuntimeError, match="hook 'bad' failed in on_load"):
        Loop(Points(), experiment(), {"bad": hook}, store=store).restore("epoch-0001")
    assert hook.errors == ["hook 'bad' failed in on_load on rank 0: ValueError: no"]


def test_leaving_the_generator_ends_the_run() -> None:
    lines: list[str] = []
    reports = Loop(Points(), experiment(epochs=5), {"diary": diary(lines)}).run()
    next(reports)
    reports.close()  # type: ignore[attr-defined]
    assert lines[-1] == "on_end val 1 7 7 52"


# Validation


def validations(**fields: Any) -> list[tuple[int, int, list[str]]]:
    loop = Loop(Points(), experiment(**fields), {})
    reports = [report.metrics for report in loop.run()]
    return [(r["epoch"], r["step"], sorted(k for k in r if "/" in k)) for r in reports]


BOTH = ["train/accuracy", "train/loss", "val/accuracy", "val/loss"]
TRAIN = ["train/accuracy", "train/loss"]


def test_validation_every_two_epochs_and_at_the_end() -> None:
    assert validations(epochs=3, validate_every=Rhythm(2)) == [(0, 7, TRAIN), (1, 14, BOTH), (2, 21, BOTH)]


def test_validation_in_steps_does_not_care_about_epochs_which_report_for_themselves() -> None:
    # 7 steps in an epoch: validation at 4, 8 and 12, reports at each epoch's end too; the last one always validates
    assert validations(epochs=2, validate_every=Rhythm(4, "steps")) == [
        (0, 4, BOTH),
        (0, 7, TRAIN),
        (1, 8, BOTH),
        (1, 12, BOTH),
        (1, 14, BOTH),
    ]


def test_validation_never() -> None:
    assert validations(validate_every=Rhythm(0)) == [(0, 7, TRAIN), (1, 14, TRAIN)]


def test_means_are_over_samples_not_batches() -> None:
    """The last batches are smaller, so a mean of batch means would differ."""
    loop = Loop(Points(), experiment(epochs=1), {})
    metrics = next(loop.run()).metrics
    dataset: Any = Points().data()["val"]
    model = loop.state.module.eval()
    with torch.no_grad():
        output = model(dataset.points)
    assert metrics["val/loss"] == pytest.approx(functional.cross_entropy(output, dataset.labels).item(), rel=1e-6)
    assert metrics["val/accuracy"] == (output.argmax(1) == dataset.labels).double().mean().item()


def test_train_means_hold_one_round_and_every_sample_of_it() -> None:
    rows = Rows()
    loop = Loop(Points(), experiment(validate_every=Rhythm(4, "steps")), {}, recorder=rows)
    reports = [report.metrics for report in loop.run()]
    train = rows.columns("loss", "batch_size", phase="train")
    for report, begin, end in zip(reports, [0, 4, 7, 8, 12], [4, 7, 8, 12, 14], strict=True):
        part = train[begin:end]
        mean = sum(loss * size for loss, size in part) / sum(size for _, size in part)
        assert report["train/loss"] == pytest.approx(mean, rel=1e-12)


def test_the_model_trains_in_train_mode_and_is_validated_in_eval_mode() -> None:
    modes: dict[str, set[bool]] = {"train": set(), "val": set()}

    def ask(event: str, state: State) -> None:
        if event == "on_forward":
            modes[state.phase].add(state.module.training)

    run(Points(dropout=0.5), {"diary": diary([], ask)})
    assert modes == {"train": {True}, "val": {False}}


def test_rows_name_each_iteration_once() -> None:
    rows = Rows()
    loop = Loop(Points(test=5), experiment(validate_every=Rhythm(4, "steps")), {}, recorder=rows)
    list(loop.run())
    assert rows.columns("epoch", "iteration", "step", "samples", phase="train")[:8] == [
        *((0, n, n, 8 * n) for n in range(1, 7)),
        (0, 7, 7, 52),
        (1, 8, 8, 60),
    ]
    # 23 samples are 3 batches; one validation in epoch 0, three in epoch 1
    assert rows.columns("epoch", "iteration", phase="val") == [(0, n) for n in (1, 2, 3)] + [(1, n) for n in range(1, 10)]
    assert rows.columns("epoch", "iteration", phase="test") == [(1, 1)]


# Stopping


class StopAt(Hook):
    """Asks for the run to end at an iteration, or at the end of a training phase."""

    def __init__(self, iteration: int, event: str = "on_step") -> None:
        self.iteration, self.event = iteration, event

    def on_step(self, state: State) -> None:
        if self.event == "on_step" and state.iteration == self.iteration:
            state.request_stop("enough")

    def on_phase_end(self, state: State) -> None:
        if self.event == "on_phase_end" and state.iteration == self.iteration:
            state.request_stop("enough")


def test_a_hook_stops_the_run_after_the_round_and_the_test_phase_still_runs() -> None:
    loop = Loop(Points(test=5), experiment(epochs=9), {"stop": StopAt(14, "on_phase_end")})
    reports = list(loop.run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.final) for r in reports] == [
        (7, (), False, False),
        (14, ("enough",), False, False),
        (14, ("enough",), False, True),
    ]
    assert "val/loss" in reports[1].metrics
    assert "test/loss" in reports[2].metrics


def test_a_hook_stops_the_run_in_the_middle_of_an_epoch_and_that_is_no_interruption(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    loop = Loop(Points(), experiment(epochs=9), {"stop": StopAt(10)}, store=store)
    reports = list(loop.run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.final) for r in reports] == [
        (7, (), False, False),
        (10, ("enough",), False, True),
    ]
    assert store.names() == ["step-00000010"]


def test_asked_from_outside_it_stops_after_the_step_and_can_be_resumed(tmp_path: Path) -> None:
    store, calls = CheckpointStore(Storage(tmp_path)), []

    def stop_asked() -> bool:
        calls.append(1)
        return len(calls) >= 5

    loop = Loop(Points(), experiment(accumulate=2), {}, store=store, stop_asked=stop_asked)
    reports = list(loop.run())
    assert [(r.stopped, r.interrupted, r.final) for r in reports][-1] == (("interrupted",), True, True)
    assert store.position(store.names()[-1]).iteration == loop.state.iteration
    # asked at the steps alone, never between the micro-batches of one
    assert (loop.state.phase_iteration % 2 == 0) or loop.state.phase_iteration == 7


class PauseAt(Hook):
    """Asks for a pause at the end of a phase."""

    def __init__(self, phase: str, rank: int = 0) -> None:
        self.phase, self.rank = phase, rank

    def on_phase_end(self, state: State) -> None:
        if state.phase == self.phase and state.rank == self.rank:
            state.request_pause("time is up")


@pytest.mark.parametrize("phase", ["train", "val"])
def test_a_hook_that_asks_for_a_pause_leaves_a_run_to_resume(tmp_path: Path, phase: str) -> None:
    whole = Loop(Points(test=5), experiment(), {})
    expected = list(whole.run())
    store = CheckpointStore(Storage(tmp_path))
    begun = list(Loop(Points(test=5), experiment(), {"pause": PauseAt(phase)}, store=store).run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.final) for r in begun] == [(7, ("time is up",), True, True)]
    resumed = Loop(Points(test=5), experiment(), {}, store=store)
    resumed.restore(store.names()[-1])
    rest = list(resumed.run())
    assert [r.metrics for r in rest if r.metrics["step"] > 7] == [r.metrics for r in expected if r.metrics["step"] > 7]
    assert numbers(resumed.state.module) == numbers(whole.state.module)


def _pause_on_rank_1(rank: int, world_size: int, folder: str) -> Any:
    store = CheckpointStore(Storage(folder), master=rank == 0)
    hooks: dict[str, Hook] = {"pause": PauseAt("train", rank=1)}
    reports = list(Loop(Points(), experiment(), hooks, world=World(rank, world_size, rank), store=store).run())
    return [(report.metrics["step"], report.stopped, report.interrupted) for report in reports], store.names()


def test_a_pause_asked_on_one_rank_is_every_ranks(tmp_path: Path) -> None:
    first, second = on_ranks(_pause_on_rank_1, 2, str(tmp_path))
    assert first == second == ([(4, ("time is up",), True)], ["epoch-0001"])


class AskForCheckpoint(Hook):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.iteration == self.iteration:
            state.request_checkpoint("a test")


def test_a_checkpoint_asked_for_between_micro_batches_waits_for_the_step(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    loop = Loop(Points(), experiment(epochs=1, accumulate=3), {"ask": AskForCheckpoint(2)}, store=store)
    list(loop.run())
    assert [store.position(name).iteration for name in store.names()] == [3]


# Ranks


def _train_on_rank(rank: int, world_size: int, task: Points, fields: dict[str, Any], sync: bool = False) -> Any:
    hooks: dict[str, Hook] = {"sync_buffers": SyncBuffers()} if sync else {}
    seen = Seen()
    loop = Loop(task, experiment(**fields), {**hooks, "seen": seen}, world=World(rank, world_size, rank))
    reports = [report.metrics for report in loop.run()]
    return {"weights": numbers(loop.state.module), "reports": reports, "seen": seen.indices}


def alone(task: Points, **fields: Any) -> Any:
    return _train_on_rank(0, 1, task, fields)


def close(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name, value in left.items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(right[name]), rtol=1e-5, atol=1e-6)


def test_two_ranks_train_as_one_with_twice_the_batch() -> None:
    two = on_ranks(_train_on_rank, 2, Points(), {"batch_size": 4})
    one = alone(Points(), batch_size=8)
    assert two[0]["weights"] == two[1]["weights"]
    close(two[0]["weights"], one["weights"])
    for of_rank_0, of_rank_1, joined in zip(two[0]["seen"], two[1]["seen"], one["seen"], strict=True):
        assert sorted(of_rank_0 + of_rank_1) == sorted(joined)
    for two_report, one_report in zip(two[0]["reports"], one["reports"], strict=True):
        assert two_report["train/loss"] == pytest.approx(one_report["train/loss"], rel=1e-5)
        assert two_report["step"] == one_report["step"]
    assert two[0]["reports"][-1]["val/accuracy"] == two[1]["reports"][-1]["val/accuracy"]


def _count_all_reduces(rank: int, world_size: int) -> tuple[int, int, int, dict[str, Any]]:
    loop = Loop(Points(), experiment(batch_size=4, accumulate=3), {}, world=World(rank, world_size, rank))
    calls: list[int] = []

    def counting(group, bucket):  # torch refuses annotations that are strings
        calls.append(loop.state.iteration)
        return allreduce_hook(group, bucket)

    model: Any = loop.state.model
    model.register_comm_hook(None, counting)
    list(loop.run())
    return len(calls), loop.state.step, loop.state.iteration, numbers(loop.state.module)


def test_ranks_exchange_gradients_once_per_step_not_per_micro_batch() -> None:
    (calls, steps, iterations, weights), *_ = on_ranks(_count_all_reduces)
    assert (calls, steps, iterations) == (6, 6, 14)
    close(weights, numbers(raw_training(Points(), batch_size=8, accumulate=3)))


@pytest.mark.parametrize("world_size", [2, 3])
def test_validation_counts_every_sample_once_whatever_the_ranks(world_size: int) -> None:
    """The model is the same on all; 23 samples are shared unevenly by 2 and by 3 ranks."""
    many = on_ranks(_validate_on_rank, world_size)
    one = _validate_on_rank(0, 1)
    for values in many:
        assert values["val/accuracy"] == one["val/accuracy"]
        assert values["val/loss"] == pytest.approx(one["val/loss"], rel=1e-6)
        assert values["val/f1"] == pytest.approx(one["val/f1"], rel=1e-6)
        assert values["val/auroc"] == pytest.approx(one["val/auroc"], rel=1e-6)


class Metered(Points):
    """Points with metrics that are no means over samples."""

    def meters(self) -> dict[str, Any]:
        return {"f1": MulticlassF1Score(3), "auroc": MulticlassAUROC(3)}


def _validate_on_rank(rank: int, world_size: int, val: int = 23) -> dict[str, Any]:
    loop = Loop(Metered(val=val), experiment(epochs=1), {}, world=World(rank, world_size, rank))
    torch.manual_seed(5)
    for parameter in loop.state.module.parameters():
        nn.init.normal_(parameter)
    loop._evaluate("val")
    return loop.state.metrics


def test_meters_with_a_rank_without_samples_are_refused_as_torchmetrics_would_hang() -> None:
    for message in on_ranks(_refusal, 2):
        assert "need a val sample on each rank; there are 1 for 2 ranks" in message


def _refusal(rank: int, world_size: int) -> str:
    with pytest.raises(ConfigError) as error:
        _validate_on_rank(rank, world_size, val=1)
    return str(error.value)


def test_meters_are_torchmetrics_own_values() -> None:
    dataset: Any = Points().data()["val"]
    loop = Loop(Metered(), experiment(epochs=1), {})
    metrics = next(loop.run()).metrics
    with torch.no_grad():
        output = loop.state.module.eval()(dataset.points)
    assert metrics["val/f1"] == pytest.approx(MulticlassF1Score(3)(output, dataset.labels).item())
    assert metrics["val/auroc"] == pytest.approx(MulticlassAUROC(3)(output, dataset.labels).item())


def _report_steps(rank: int, world_size: int, train: int) -> list[tuple[int, list[str]]]:
    loop = Loop(
        Points(train=train, val=3, test=1),
        experiment(epochs=2, batch_size=4, validate_every=Rhythm(3, "steps")),
        {},
        world=World(rank, world_size, rank),
    )
    return [(report.metrics["step"], sorted(report.metrics)) for report in loop.run()]


def test_all_ranks_report_at_the_same_places_though_their_data_is_uneven() -> None:
    # 29 samples: 15 for each rank after one is repeated, 4 batches
    first, second = on_ranks(_report_steps, 2, 29)
    assert first == second
    assert [step for step, _ in first] == [3, 4, 6, 8, 8]


class Collective(Hook):
    collective = True


def _disagree(rank: int, world_size: int) -> str:
    hooks: dict[str, Hook] = {"together": Collective()} if rank == 0 else {}
    with pytest.raises(WorkersDisagree) as error:
        Loop(Points(), experiment(), hooks, world=World(rank, world_size, rank))
    return str(error.value)


def test_ranks_with_other_collective_hooks_are_refused_instead_of_hanging() -> None:
    for message in on_ranks(_disagree):
        assert "rank 1 runs the collective hooks []" in message
        assert "'together:Collective'" in message


def _stop_on_rank_1(rank: int, world_size: int, root: str, check_every_s: float) -> tuple[list[Any], list[str]]:
    world_module.CHECK_EVERY_S = check_every_s

    def stop_asked() -> bool:
        return rank == 1 and loop.state.step >= 3

    store = CheckpointStore(Storage(root), master=rank == 0)
    loop = Loop(Points(), experiment(batch_size=4), {}, world=World(rank, world_size, rank), store=store, stop_asked=stop_asked)
    reports = [(r.metrics["step"], r.stopped, r.interrupted, r.final) for r in loop.run()]
    return reports, store.names()


def test_a_stop_asked_on_one_rank_ends_all_at_the_same_step(tmp_path: Path) -> None:
    first, second = on_ranks(_stop_on_rank_1, 2, str(tmp_path), 0.0)
    assert first == second == ([(3, ("interrupted",), True, True)], ["step-00000003"])


def test_ranks_that_ask_each_other_rarely_stop_at_the_end_of_the_round_at_the_latest(tmp_path: Path) -> None:
    # asked once in a thousand iterations: within this epoch they do not hear of each other
    first, second = on_ranks(_stop_on_rank_1, 2, str(tmp_path), 1e9)
    assert first == second == ([(7, ("interrupted",), True, True)], ["epoch-0001"])


def test_a_report_says_where_the_newest_checkpoint_is(tmp_path: Path) -> None:
    loop = Loop(Points(), experiment(), {"ask": AskForCheckpoint(3)}, store=CheckpointStore(Storage(tmp_path)))
    reports: list[Report] = list(loop.run())
    assert [report.checkpoint for report in reports] == [f"{tmp_path}/step-00000003"] * 2


# How the model is computed


def test_a_compiled_model_trains_as_it_does_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both modes, with the names that its parameters have. As torch captures it alone: what makes
    machine code of it takes a minute to begin with."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    def lived(**fields: Any) -> tuple[list[Any], list[str]]:
        rows = Rows()
        loop = Loop(Points(train=16, val=8), experiment(steps=4, **fields), {}, recorder=rows)
        list(loop.run())
        return rows.columns("phase", "loss"), list(loop.state.module.state_dict())

    counters.clear()
    (rows, names), (expected, named) = lived(compile=True), lived()
    assert counters["stats"]["unique_graphs"] == 2  # one for training, one for evaluation
    assert names == named
    for (phase, loss), (same, reference) in zip(rows, expected, strict=True):
        assert (phase, loss) == (same, pytest.approx(reference, rel=1e-5))


@dataclass
class Images(Points):
    """The points as images that a convolution looks at."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 4, (1, 3)), nn.Conv2d(4, 3, (1, 3)), nn.Flatten())


def test_channels_last_is_how_images_lie_in_memory_and_no_other_number() -> None:
    found = {}
    for wanted in (True, False):
        rows = Rows()
        loop = Loop(Images(train=16, val=0), experiment(steps=4, channels_last=wanted), {}, recorder=rows)
        list(loop.run())
        assert loop.state.module.get_parameter("2.weight").stride(1) == (1 if wanted else 3)  # shape (3, 4, 1, 3)
        found[wanted] = [loss for (loss,) in rows.columns("loss")]
    assert found[True] == pytest.approx(found[False], rel=1e-5)
