import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.position import Stage
from hooks.training.ema import EMA
from hooks.training.param_scheduler import ParamScheduler
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import CheckpointError, StorageError, UsageError
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.testing.small_loop import Screen
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, Seen, experiment, numbers, plain

# All state that a resume can lose: random draws of dropout and noise, batch norm's buffers, the
# scheduler's count.
TASK = Points(train=44, val=11, batch_norm=True, dropout=0.4, noisy=True)
SCHEDULER = Component(type="CosineAnnealingLR", T_max=11)


def make_hooks(every: str, **ema: Any) -> dict[str, Hook]:
    return {
        "sampler_seed": DistSamplerSeed(),
        "ema": EMA(decay=0.7, **ema),
        "scheduler": ParamScheduler(every=Interval(1, "steps")),
        "checkpoint": Checkpoint(every=Interval.parse(every), keep=None),
    }


@dataclass
class Outcome:
    """One process's part of a run, as far as it can be compared."""

    final: dict[str, Any]
    reports: list[dict[str, Any]]
    rows: list[tuple[Any, ...]]
    seen: list[list[int]]


def run_loop(
    root: Path,
    hooks: dict[str, Hook],
    restore: str | None = None,
    world: World | None = None,
    **fields: Any,
) -> Outcome:
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    world = world or World()
    rows = Rows()
    seen = Seen()
    store = CheckpointStore(Storage(root), is_master=world.is_master)
    fields = {"epochs": 3, "batch_size": 6, "scheduler": SCHEDULER, **fields}
    loop = Loop(
        TASK,
        experiment(**fields),
        {**hooks, "seen": seen},
        RunContext(store=store, recorder=rows, world=world),
    )
    if restore:
        loop.restore(restore)
    reports = [report.metrics for report in loop.run()]
    assert loop.state.optimizer is not None
    final = {
        "model": numbers(loop.state.module),
        "optimizer": plain(loop.state.optimizer.state_dict()),
        "scheduler": plain(loop.state.scheduler.state_dict()),
        "scaler": loop.state.scaler and loop.state.scaler.state_dict(),
        "ema": plain(loop.runs[0].plan.hooks["ema"].rank_state_dict()),
        "samples": loop.state.samples,
    }
    with loop.runs[0].plan.hooks["ema"].applied(loop.state):
        final["averages"] = numbers(loop.state.module)
    columns = rows.columns("phase", "epoch", "iteration", "step", "loss", "lr", phase="train")
    columns += rows.columns("phase", "epoch", "iteration", "step", "loss", phase="val")
    return Outcome(final, reports, columns, seen.indices)


def check_resumed(root: Path, whole: Outcome, name: str, resumed: Outcome) -> None:
    """Check that a run from a checkpoint on ends as the undisturbed one did."""
    position = CheckpointStore(Storage(root)).read_position(name)
    stage = position.stage
    step = position.step
    iteration = position.iteration
    assert resumed.final == whole.final
    assert resumed.seen == whole.seen[iteration:]
    reports = [
        r
        for r in whole.reports
        if r["step"] > step or (r["step"] == step and stage is Stage.TRAINED)
    ]
    assert resumed.reports == reports
    train = [row for row in whole.rows if row[0] == "train" and row[2] > iteration]
    val = [
        row
        for row in whole.rows
        if row[0] == "val" and (row[3] > step or (row[3] == step and stage is Stage.TRAINED))
    ]
    assert resumed.rows == train + val


CASES = [
    pytest.param("3 steps", {}, {"precision": "fp16"}, id="fp16"),
    pytest.param(
        "3 steps",
        {"buffers": "ema", "evaluate": "both"},
        {},
        id="averaged buffers, two validations",
    ),
]


@pytest.mark.parametrize(("every", "ema", "fields"), CASES)
def test_resume_from_each_checkpoint_is_bit_for_bit(
    tmp_path: Path, every: str, ema: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Weights, buffers, optimizer, averages, metrics, rows and data order, bit for bit, from every
    checkpoint."""
    whole = run_loop(tmp_path / "whole", make_hooks(every, **ema), **fields)
    names = CheckpointStore(Storage(tmp_path / "whole")).list_names()
    assert len(names) >= 3
    for name in names:
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        resumed = run_loop(tmp_path / name, make_hooks(every, **ema), name, **fields)
        check_resumed(tmp_path / "whole", whole, name, resumed)


# Ranks


def _run_on_rank(rank: int, world_size: int, root: str) -> Outcome:
    return run_loop(
        Path(root),
        make_hooks("2 steps"),
        None,
        World(rank, world_size, rank),
        epochs=2,
        batch_size=4,
    )


class _EmptyError(StorageError):
    """An error that is false, because it has a length."""

    def __len__(self) -> int:
        return 0


class _FailingStore(CheckpointStore):
    """A store that fails to write the files, or once they are written."""

    errors: Mapping[str, BaseException]

    def choose_name(self, name: str) -> str:
        if "choose" in self.errors:
            raise self.errors["choose"]
        return super().choose_name(name)

    def discard_unfinished(self, name: str) -> None:
        if "discard" in self.errors:
            raise self.errors["discard"]
        super().discard_unfinished(name)

    def write_files(self, *arguments: Any) -> dict[str, dict[str, Any]]:
        if "write" in self.errors:
            raise self.errors["write"]
        return super().write_files(*arguments)

    def commit(self, *arguments: Any, **details: Any) -> None:
        raise self.errors["commit"]


def _fail_to_save(
    rank: int,
    world_size: int,
    root: str,
    background: bool,
    errors: Sequence[Mapping[str, BaseException]],
) -> str:
    world = World(rank, world_size, rank)
    store = _FailingStore(Storage(root), is_master=world.is_master)
    store.errors = errors[rank]
    context = RunContext(world=world, store=store)
    hooks = {"checkpoint": Checkpoint(background=background)}
    saver = Loop(Points(), experiment(batch_size=4), hooks, context).runs[0].checkpoints.saver

    def save() -> None:
        saver.save("first")
        saver.finish()

    with pytest.raises((StorageError, CheckpointError, SystemExit)) as error:
        save()
    return str(error.value)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("error", "own", "told"),
    [
        (StorageError("the disk is full"), "the disk is full", "the disk is full"),
        (SystemExit(3), "3", "SystemExit: 3"),
    ],
)
def test_error_of_the_master_s_commit_reaches_the_other_ranks(
    tmp_path: Path, background: bool, error: BaseException, own: str, told: str
) -> None:
    errors: list[dict[str, BaseException]] = [{"commit": error}, {}]
    assert on_ranks(_fail_to_save, 2, str(tmp_path), background, errors) == [
        own,
        f"checkpoint {tmp_path}/first cannot be written: rank 0: {told}",
    ]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("error", "own", "told"),
    [(_EmptyError("no file"), "no file", "no file"), (SystemExit(3), "3", "SystemExit: 3")],
)
def test_error_while_a_rank_writes_reaches_the_other_ranks(
    tmp_path: Path, background: bool, error: BaseException, own: str, told: str
) -> None:
    errors: list[dict[str, BaseException]] = [{}, {"write": error}]
    assert on_ranks(_fail_to_save, 2, str(tmp_path), background, errors) == [
        f"checkpoint {tmp_path}/first cannot be written: rank 1: {told}",
        own,
    ]


@pytest.mark.parametrize(("part", "failing"), [("choose", 0), ("discard", 1)])
def test_error_before_a_rank_writes_reaches_the_other_ranks(
    tmp_path: Path, part: str, failing: int
) -> None:
    errors: list[dict[str, BaseException]] = [{}, {}]
    errors[failing] = {part: StorageError("the disk is full")}
    expected = [
        f"checkpoint {tmp_path}/first cannot be written: rank {failing}: the disk is full"
    ] * 2
    expected[failing] = "the disk is full"
    assert on_ranks(_fail_to_save, 2, str(tmp_path), False, errors) == expected


def test_one_rank_resumes_a_run_of_two(tmp_path: Path) -> None:
    """With the remaining samples in order, and means over all of the epoch's samples, also those of
    the lost rank."""
    outcomes = on_ranks(_run_on_rank, 2, str(tmp_path))
    alone = run_loop(tmp_path, make_hooks("2 steps"), "step-00000004", epochs=2, batch_size=4)
    dataset: Any = TASK.data()["train"]
    order = list(DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=0))
    assert [place for batch in alone.seen[:3] for place in batch] == order[32:]
    begun = [
        row for outcome in outcomes for row in outcome.rows if row[0] == "train" and row[2] <= 4
    ]
    losses = [
        loss for *_, loss, _ in begun + [row for row in alone.rows if row[:2] == ("train", 0)]
    ]
    assert len(losses) == 11
    assert alone.reports[0]["train/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)


# What is saved, and when


class Witness(Hook):
    """Looks at the files of the run when a checkpoint is announced."""

    def __init__(self, storage: Storage, store: CheckpointStore) -> None:
        self.storage = storage
        self.store = store
        self.found: list[tuple[int, int]] = []

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step % 3 == 0:
            state.request_checkpoint("a test")

    def on_saved(self, state: State, path: str) -> None:
        table = open_recorded(self.storage, "rows").read()
        self.found.append((state.iteration, table.num_rows))
        assert self.store.list_names()[-1] == Path(path).name


def test_rows_are_on_disk_before_a_checkpoint_is_announced(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    store = CheckpointStore(storage / "checkpoints")
    recorder = Recorder(storage, "stats/attempt=0/rank=0", flush_s=1e9)
    hook = Witness(storage, store)
    list(
        Loop(
            Points(val=0),
            experiment(epochs=1),
            {"witness": hook},
            RunContext(store=store, recorder=recorder),
        ).run()
    )
    assert hook.found == [(3, 3), (6, 6)]


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    first = Loop(Points(), experiment(), {}, RunContext(store=store))
    reports = first.run()
    next(reports)
    first.save()
    other = Loop(Points(batch_norm=True), experiment(), {}, RunContext(store=store))
    with pytest.raises(
        UsageError, match=r"'epoch-0001' does not fit this experiment: .* missing: .*running_mean"
    ):
        other.restore("epoch-0001")


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("ECC error")],
    ids=["memory", "device"],
)
def test_a_failure_of_the_device_while_a_checkpoint_is_restored_is_not_a_misfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    """A retry may succeed, so it must not count as a mistake of the user."""
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    first = Loop(Points(), experiment(), {}, context)
    next(first.run())
    first.save()

    def fail(optimizer: torch.optim.Optimizer, content: Any) -> None:
        raise error

    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", fail)
    with pytest.raises(type(error), match=str(error)):
        Loop(Points(), experiment(), {}, context).restore("epoch-0001")


class Vocabulary(nn.Linear):
    """Looks up a word that is not there when it is loaded."""

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return {}["word"]


@dataclass
class WithVocabulary(Points):
    def model(self) -> nn.Module:
        return Vocabulary(5, 3)


def test_a_key_error_of_the_model_is_not_the_optimizer_s(tmp_path: Path) -> None:
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    first = Loop(WithVocabulary(), experiment(), {}, context)
    next(first.run())
    first.save()
    other = Loop(WithVocabulary(), experiment(), {}, context)
    with pytest.raises(
        UsageError, match="the model's load_state_dict asks for 'word', which is not in"
    ):
        other.restore("epoch-0001")


def test_checkpoint_that_does_not_fit_a_hook_is_refused_by_the_hook_s_name(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    first = Loop(
        Points(), experiment(), {"mean": EMA(average="power", std=0.1)}, RunContext(store=store)
    )
    next(first.run())
    first.save()
    other = Loop(Points(), experiment(), {"mean": EMA(decay=0.9)}, RunContext(store=store))
    with pytest.raises(
        HookError, match=r"hooks\.mean\.std: must be 0\.1, as in the checkpoint, got none"
    ):
        other.restore("epoch-0001")


class Refuses(Hook):
    """Refuses the state of its rank."""

    def rank_state_dict(self) -> dict[str, Any]:
        return {"count": 1}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("unknown count")


def test_error_of_a_hook_s_rank_state_names_the_method(tmp_path: Path) -> None:
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    first = Loop(Points(), experiment(), {"refuses": Refuses()}, context)
    next(first.run())
    first.save()
    other = Loop(Points(), experiment(), {"refuses": Refuses()}, context)
    with pytest.raises(HookError, match=r"'refuses' failed in load_rank_state_dict: .*unknown"):
        other.restore("epoch-0001")


def test_without_a_store_nothing_is_saved_and_restoring_says_so() -> None:
    loop = Loop(Points(), experiment(), {})
    assert loop.save() is None
    with pytest.raises(CheckpointError, match="no store"):
        loop.restore("epoch-0001")


def test_run_that_does_not_save_restores_and_leaves_the_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    hooks = {"checkpoint": Checkpoint()}
    list(Loop(Points(), experiment(epochs=1), hooks, RunContext(store=store)).run())
    context = RunContext(store=store, saves=False)
    loop = Loop(Points(), experiment(epochs=2), {"checkpoint": Checkpoint()}, context)
    loop.restore("epoch-0001")
    list(loop.run())
    assert loop.state.epoch == 2
    assert store.list_names() == ["epoch-0001"]


def begin(root: Path, every: str) -> None:
    checkpoint = Checkpoint(every=Interval.parse(every), keep=9)
    list(
        Loop(
            Points(),
            experiment(),
            {"checkpoint": checkpoint},
            RunContext(store=CheckpointStore(Storage(root))),
        ).run()
    )


EPOCH = "epoch-0001"
WITHIN = "step-00000003"
REPEATS = "; the rest of this epoch may repeat or miss some"


@pytest.mark.parametrize(
    ("name", "train", "val", "told"),
    [
        (EPOCH, 52, 23, ""),
        (EPOCH, 44, 23, f"train had 52 samples when checkpoint '{EPOCH}' was made, and has 44 now"),
        (EPOCH, 52, 20, f"val had 23 samples when checkpoint '{EPOCH}' was made, and has 20 now"),
        (
            WITHIN,
            44,
            23,
            f"train had 52 samples when checkpoint '{WITHIN}' was made, and has 44 now{REPEATS}",
        ),
    ],
)
def test_changed_number_of_samples_is_shown(
    tmp_path: Path, name: str, train: int, val: int, told: str
) -> None:
    begin(tmp_path, "3 steps" if name == WITHIN else "1 epoch")
    screen = Screen()
    store = CheckpointStore(Storage(tmp_path))
    loop = Loop(
        Points(train=train, val=val), experiment(), {}, RunContext(store=store, display=screen)
    )
    loop.restore(name)
    assert screen.lines == ([told] if told else [])
    *_, last = [report.metrics["samples"] for report in loop.run()]
    assert last == (train if name == WITHIN else 52) + train


def test_resume_past_the_last_sample_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, "3 steps")
    loop = Loop(
        Points(train=20), experiment(), {}, RunContext(store=CheckpointStore(Storage(tmp_path)))
    )
    with pytest.raises(
        CheckpointError,
        match=r"train has 20 samples now, but checkpoint '.*' was made after 24 of 52 in its epoch",
    ):
        loop.restore("step-00000003")
