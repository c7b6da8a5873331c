import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hooks import EVENTS, HOOKS, Hook, Interval, State, at_interval
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import RankMismatch
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.raw import raw_training
from tests.tasks import Points, Rows, Seen, experiment, numbers


def run(task: Points, hooks: dict[str, Hook] | None = None, **fields: Any) -> Loop:
    loop = Loop(task, experiment(**fields), hooks or {})
    list(loop.run())
    return loop


# Against a raw loop


@pytest.mark.parametrize(
    "task",
    [Points(), Points(dropout=0.5, batch_norm=True)],
    ids=["plain", "dropout and batch norm"],
)
def test_training_equals_a_raw_loop(task: Points) -> None:
    assert numbers(run(task).state.module) == numbers(raw_training(task))


@pytest.fixture
def no_collection() -> Iterator[None]:
    run(
        Points()
    )  # the first optimizer of a process imports torch's compiler, within which a caught error keeps its frames
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_loop_is_garbage_collected(tmp_path: Path) -> None:
    # Where trials follow each other in a process, a GPU out of memory runs no collection.
    names = (
        "ema",
        "checkpoint",
        "console",
        "perf_stats",
        "memory_stats",
        "activation_stats",
        "gradient_clip",
        "memory_snapshot",
    )
    kept: dict[str, weakref.ref[Any]] = {}
    for name in ("", *names):
        hooks = {name: HOOKS[name]()} if name else {}
        loop = Loop(
            Points(),
            experiment(),
            hooks,
            RunContext(store=CheckpointStore(Storage(tmp_path / name)), artifacts=tmp_path),
        )
        list(loop.run())
        kept |= {
            f"{name} {part}": weakref.ref(getattr(loop.state, part))
            for part in ("module", "optimizer")
        }
        del loop
    assert [name for name, part in kept.items() if part() is not None] == []


def test_sampler_seed_gives_each_epoch_the_order_of_torchs_sampler() -> None:
    loop = run(Points(), {"sampler_seed": DistSamplerSeed()}, epochs=3, seed=4)
    assert numbers(loop.state.module) == numbers(
        raw_training(Points(), epochs=3, seed=4, new_order=True)
    )
    assert numbers(loop.state.module) != numbers(raw_training(Points(), epochs=3, seed=4))


def test_accumulation_averages_each_group_and_the_smaller_last_one() -> None:
    # 52 samples in batches of 8 are 7 micro-batches: groups of 3, 3 and 1
    loop = run(Points(), accumulate=3)
    assert numbers(loop.state.module) == numbers(raw_training(Points(), accumulate=3))
    assert (loop.state.iteration, loop.state.step) == (14, 6)


def test_run_with_steps_ends_in_the_middle_of_an_epoch() -> None:
    loop = run(Points(), {"sampler_seed": DistSamplerSeed()}, steps=9)
    assert numbers(loop.state.module) == numbers(
        raw_training(Points(), max_steps=9, new_order=True)
    )
    assert (loop.state.epoch, loop.state.step, loop.state.samples) == (1, 9, 52 + 16)


def _train_on_rank(rank: int, world_size: int, batch_size: int) -> dict[str, Any]:
    seen = Seen()
    loop = Loop(
        Points(),
        experiment(batch_size=batch_size),
        {"seen": seen},
        RunContext(world=World(rank, world_size, rank)),
    )
    reports = [report.metrics for report in loop.run()]
    return {"weights": numbers(loop.state.module), "reports": reports, "seen": seen.indices}


# Events


def diary(lines: list[str], asks: Callable[[str, State], None] = lambda event, state: None) -> Hook:
    """A hook that writes down every event with phase, epoch, iteration, step and samples, and may
    ask for something."""

    def noting(event: str) -> Callable[..., None]:
        def note(self: Hook, state: State, *rest: Any) -> None:
            lines.append(
                f"{event} {state.phase} {state.epoch} {state.iteration} {state.step} {state.samples}".replace(
                    "  ", " - "
                )
            )
            asks(event, state)

        return note

    return type("Diary", (Hook,), {event: noting(event) for event in EVENTS})()


def test_events_fire_in_order_with_counters_of_completed_work(tmp_path: Path) -> None:
    """Five samples in batches of two, accumulated by two: steps of two micro-batches and of one. A
    checkpoint is asked for after the first step, after training and after validation."""

    def ask(event: str, state: State) -> None:
        if (
            event == "on_step" and state.phase == "train" and state.step == 1
        ) or event == "on_phase_end":
            state.request_checkpoint("a test")

    lines: list[str] = []
    loop = Loop(
        Points(train=5, val=3, test=2),
        experiment(epochs=1, batch_size=2, accumulate=2),
        {"diary": diary(lines, ask)},
        RunContext(store=CheckpointStore(Storage(tmp_path))),
    )
    for report in loop.run():
        lines.append(f"report {'final' if report.is_final else 'not final'}")
    forward = "iteration_start batch forward loss"
    assert lines == [
        *at("- 0 0 0 0", "start"),
        *at("train 0 0 0 0", f"phase_start {forward} backward"),
        *at(
            "train 0 1 0 2", f"step {forward} backward gradients update"
        ),  # the second micro-batch makes the step
        *at(
            "train 0 2 1 4", f"step save saved {forward} backward gradients update"
        ),  # the last is a step of its own
        *at("train 0 3 2 5", "step"),
        *at("train 1 3 2 5", "phase_end save saved"),
        *at(
            "val 1 3 2 5", f"phase_start {forward} step {forward} step phase_end save saved report"
        ),
        "report not final",
        *at("test 1 3 2 5", f"phase_start {forward} step phase_end report"),
        "report final",
        *at("test 1 3 2 5", "end"),
    ]


def at(place: str, events: str) -> list[str]:
    """Return the diary's lines of events at one place."""
    return [f"on_{event} {place}" for event in events.split()]


def test_on_load_comes_before_on_start(tmp_path: Path) -> None:
    def ask(event: str, state: State) -> None:
        if event == "on_phase_end" and state.epoch == 1:
            state.request_checkpoint("a test")

    store = CheckpointStore(Storage(tmp_path))
    first = Loop(Points(val=0), experiment(), {"diary": diary([], ask)}, RunContext(store=store))
    list(first.run())
    lines: list[str] = []
    second = Loop(Points(val=0), experiment(), {"diary": diary(lines)}, RunContext(store=store))
    second.restore("epoch-0001")
    list(second.run())
    # stored after training and before the report
    assert lines[:4] == [
        "on_load train 1 7 7 52",
        "on_start train 1 7 7 52",
        "on_report train 1 7 7 52",
        "on_phase_start train 1 7 7 52",
    ]
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


@pytest.mark.parametrize("event", ["on_load", "on_gradients"])
def test_failure_reaches_on_exception_and_is_raised(event: str, tmp_path: Path) -> None:
    store, hook = CheckpointStore(Storage(tmp_path)), Fails(event)
    first = Loop(Points(), experiment(), {}, RunContext(store=store))
    next(first.run())
    first.save()
    loop = Loop(Points(), experiment(), {"bad": hook}, RunContext(store=store))
    message = f"hook 'bad' failed in {event}: ValueError: no"
    with pytest.raises(RuntimeError, match=message):  # noqa: PT012  # either may raise
        loop.restore("epoch-0001")
        list(loop.run())
    assert hook.errors == [message]


def test_leaving_the_generator_ends_the_run() -> None:
    lines: list[str] = []
    reports = Loop(Points(), experiment(epochs=5), {"diary": diary(lines)}).run()
    next(reports)
    reports.close()
    assert lines[-1] == "on_end val 1 7 7 52"


# TrainingLoop


def validations(**fields: Any) -> list[tuple[int, int, list[str]]]:
    loop = Loop(Points(), experiment(**fields), {})
    reports = [report.metrics for report in loop.run()]
    return [(r["epoch"], r["step"], sorted(k for k in r if "/" in k)) for r in reports]


BOTH = ["train/accuracy", "train/loss", "val/accuracy", "val/loss"]
TRAIN = ["train/accuracy", "train/loss"]


def test_validation_every_two_epochs_and_at_the_end() -> None:
    assert validations(epochs=3, validate_every=Interval(2)) == [
        (0, 7, TRAIN),
        (1, 14, BOTH),
        (2, 21, BOTH),
    ]


def test_validation_in_steps_is_independent_of_epochs() -> None:
    # 7 steps in an epoch: validation at 4, 8 and 12, reports at each epoch's end too; the last one
    # always validates
    assert validations(epochs=2, validate_every=Interval(4, "steps")) == [
        (0, 4, BOTH),
        (0, 7, TRAIN),
        (1, 8, BOTH),
        (1, 12, BOTH),
        (1, 14, BOTH),
    ]


def test_training_means_cover_every_sample_of_one_round() -> None:
    rows = Rows()
    loop = Loop(
        Points(), experiment(validate_every=Interval(4, "steps")), {}, RunContext(recorder=rows)
    )
    reports = [report.metrics for report in loop.run()]
    train = rows.columns("loss", "batch_size", phase="train")
    for report, begin, end in zip(reports, [0, 4, 7, 8, 12], [4, 7, 8, 12, 14], strict=True):
        part = train[begin:end]
        mean = sum(loss * size for loss, size in part) / sum(size for _, size in part)
        assert report["train/loss"] == pytest.approx(mean, rel=1e-12)


def test_each_iteration_has_one_row() -> None:
    rows = Rows()
    loop = Loop(
        Points(test=5),
        experiment(validate_every=Interval(4, "steps")),
        {},
        RunContext(recorder=rows),
    )
    list(loop.run())
    assert rows.columns("epoch", "iteration", "step", "samples", phase="train")[:8] == [
        *((0, n, n, 8 * n) for n in range(1, 7)),
        (0, 7, 7, 52),
        (1, 8, 8, 60),
    ]
    # 23 samples are 3 batches; one validation in epoch 0, three in epoch 1
    assert rows.columns("epoch", "iteration", phase="val") == [(0, n) for n in (1, 2, 3)] + [
        (1, n) for n in range(1, 10)
    ]
    assert rows.columns("epoch", "iteration", phase="test") == [(1, 1)]


# Ranks


class Collective(Hook):
    collective = True


def _on_rank(rank: int, world_size: int) -> dict[str, Any]:
    context = RunContext(world=World(rank, world_size, rank))
    with pytest.raises(RankMismatch) as error:
        Loop(Points(), experiment(), {"together": Collective()} if rank == 0 else {}, context)
    fields = experiment(batch_size=4, validate_every=Interval(3, "steps"))
    uneven = Loop(Points(train=29, val=3, test=1), fields, {}, context)
    reports = [(report.metrics["step"], sorted(report.metrics)) for report in uneven.run()]
    return {
        "disagree": str(error.value),
        "uneven": reports,
        "trained": _train_on_rank(rank, world_size, 4),
    }


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(_on_rank)


def test_ranks_with_uneven_data_report_at_the_same_steps(two: list[dict[str, Any]]) -> None:
    # 29 samples: 15 for each rank after one is repeated, 4 batches
    first, second = (rank["uneven"] for rank in two)
    assert first == second
    assert [step for step, _ in first] == [3, 4, 6, 8, 8]


def test_ranks_with_other_collective_hooks_are_refused_instead_of_hanging(
    two: list[dict[str, Any]],
) -> None:
    for rank in two:
        assert "rank 1 has []" in rank["disagree"]
        assert "'together:Collective'" in rank["disagree"]


def test_two_ranks_train_as_one_with_twice_the_batch(two: list[dict[str, Any]]) -> None:
    first, second = (rank["trained"] for rank in two)
    one = _train_on_rank(0, 1, 8)
    assert first["weights"] == second["weights"]
    for name, value in first["weights"].items():
        torch.testing.assert_close(
            torch.tensor(value), torch.tensor(one["weights"][name]), rtol=1e-5, atol=1e-6
        )
    for of_rank_0, of_rank_1, joined in zip(
        first["seen"], second["seen"], one["seen"], strict=True
    ):
        assert sorted(of_rank_0 + of_rank_1) == sorted(joined)
    for two_report, one_report in zip(first["reports"], one["reports"], strict=True):
        assert two_report["train/loss"] == pytest.approx(one_report["train/loss"], rel=1e-5)
        assert two_report["step"] == one_report["step"]
    assert first["reports"][-1]["val/accuracy"] == second["reports"][-1]["val/accuracy"]


@dataclass
class Noisy(Dataset[Any]):
    """Each sample draws a number."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> tuple[Tensor, int, int]:
        return torch.rand(5), place % 3, place


@dataclass
class NoisyPoints(Points):
    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": Noisy()}

    def model(self) -> nn.Module:
        return nn.Linear(5, 3)


class Batches(Hook):
    def __init__(self) -> None:
        self.drawn: list[Tensor] = []

    def on_batch(self, state: State) -> None:
        self.drawn.append(state.batch[0])


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_samples_draw_from_the_seed_of_the_rank_or_of_the_batch_in_a_process(
    processes: int,
) -> None:
    hook, batch_size = Batches(), 6
    settings = experiment(
        epochs=2, seed=4, batch_size=batch_size, loader={"num_workers": processes}
    )
    list(Loop(NoisyPoints(), settings, {"batches": hook}).run())
    torch.manual_seed(4)
    expected = []
    for epoch in range(2):
        for place in range(0, 16, batch_size):
            if processes:
                torch.manual_seed(
                    int(np.random.SeedSequence([4, epoch, place]).generate_state(1)[0])
                )
            expected.append(
                torch.stack([torch.rand(5) for _ in range(min(batch_size, 16 - place))])
            )
    assert all(
        torch.equal(drawn, reference) for drawn, reference in zip(hook.drawn, expected, strict=True)
    )


TASK = Points(train=52, val=23, test=23)  # 7, 3 and 3 iterations of 8 samples


@dataclass
class Paced(Hook):
    """Notes where it is called: the phase, the epochs that are over, the iteration in the phase."""

    every: int | Interval = 5
    before: list[tuple[str, int, int]] = field(default_factory=list)
    after: list[tuple[str, int, int]] = field(default_factory=list)

    @at_interval("every")
    def on_forward(self, state: State) -> None:
        self.before.append((state.phase, state.epoch, state.phase_iteration + 1))

    @at_interval("every")
    def on_step(self, state: State) -> None:
        self.after.append((state.phase, state.epoch, state.phase_iteration))


def test_interval_counts_iterations_of_each_phase_separately() -> None:
    hook = Paced()
    list(Loop(TASK, experiment(epochs=4), {"paced": hook}).run())
    # of 28 training iterations the 5th, 10th ...; of 12 in validation the 5th and the 10th; the
    # test has 3
    assert [place for place in hook.after if place[0] == "train"] == [
        ("train", n // 7, n % 7 or 7) for n in (5, 10, 15, 20, 25)
    ]
    assert [place for place in hook.after if place[0] != "train"] == [("val", 2, 2), ("val", 4, 1)]
    assert hook.before == hook.after


@pytest.mark.parametrize(
    "fields",
    [{"validate_every": Interval(4, "steps")}, {"accumulate": 2}],
    ids=["steps", "accumulation"],
)
def test_resumed_run_keeps_the_interval(tmp_path: Path, fields: dict[str, Interval | int]) -> None:
    def live(restore: str = "") -> tuple[list[tuple[str, int, int]], Loop]:
        hooks = {"paced": Paced(), "checkpoint": Checkpoint(every=Interval(5, "steps"), keep=None)}
        loop = Loop(
            TASK,
            experiment(epochs=4, **fields),
            hooks,
            RunContext(store=CheckpointStore(Storage(tmp_path))),
        )
        if restore:
            loop.restore(restore)
        list(loop.run())
        return hooks["paced"].after, loop  # type: ignore[attr-defined]

    whole, loop = live()
    assert loop.runs[0].store is not None
    for name in loop.runs[0].store.list_names():
        resumed, _ = live(name)
        assert resumed == whole[len(whole) - len(resumed) :]
        done = loop.runs[0].store.read_position(name).iteration
        assert len([place for place in resumed if place[0] == "train"]) == 28 // 5 - done // 5
