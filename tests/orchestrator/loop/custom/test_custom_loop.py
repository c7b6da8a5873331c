"""A task that trains by itself gets rows, reports, checkpoints and hooks as any other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.hook import EVENTS
from hooks.position import Stage
from hooks.stats.perf_stats import PerfStats
from hooks.training.early_stopping import EarlyStopping
from orchestrator import Task, TrainingSession, testing
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.errors import CheckpointError, RankMismatch, RunError, TaskError
from orchestrator.experiment.load import make_experiment, to_yaml
from orchestrator.loop.custom import task_training
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.spans import clock
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from orchestrator.storage import Storage
from tests.ranks import on_ranks, until_killed
from tests.tasks import Rows, experiment

HERE = "tests.orchestrator.loop.custom.test_custom_loop"
ROUNDS, STEPS = 3, 5


@dataclass
class Fitted(Task):
    """Fits a line with momentum and dropout; each rank has its own random numbers and its own order
    of samples."""

    killed_at: int = 0
    once: str = ""

    def train(self, session: TrainingSession, batch_size: int = 4) -> Iterator[Mapping[str, float]]:
        model, optimizer, points = built(session.rank)
        trained = DistributedDataParallel(model) if session.world_size > 1 else model
        place = {"samples": 0}
        session.restore(model=model, optimizer=optimizer, per_rank={"place": place})
        while True:
            losses = []
            for _ in range(STEPS):
                losses.append(fitted(trained, optimizer, points, batch_size))
                place["samples"] += batch_size
                session.record(loss=losses[-1], batch_size=batch_size, seen=place["samples"])
                if (
                    session.step == self.killed_at
                    and session.rank == 1
                    and not Path(self.once).exists()
                ):
                    Path(self.once).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield {"train/loss": sum(losses) / STEPS, "val/rank": float(session.rank)}


def built(rank: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 1))
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(rank))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), points


def fitted(
    model: nn.Module, optimizer: torch.optim.Optimizer, points: torch.Tensor, batch_size: int
) -> float:
    batch = points[torch.randint(len(points), (batch_size,))]
    loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def raw(rank: int) -> tuple[list[float], list[Any]]:
    """The same in plain torch: every loss of a rank, and the weights at the end."""
    torch.manual_seed(0)
    model, optimizer, points = built(rank)
    if rank:
        torch.manual_seed(rank)
    trained = DistributedDataParallel(model)
    losses = [fitted(trained, optimizer, points, 4) for _ in range(ROUNDS * STEPS)]
    return losses, [parameter.tolist() for parameter in model.parameters()]


def trained(rank: int, world_size: int, *assignments: Assignment) -> tuple[list[float], list[Any]]:
    """Trains runs one after the other, and the raw loop."""
    for assignment in assignments:
        for _ in Session(assignment, World(rank, world_size)).reports():
            pass
    return raw(rank)


def written(root: Path, name: str, **arguments: Any) -> Assignment:
    own = make_experiment(
        {
            "name": name,
            "task": f"{HERE}:Fitted",
            "task_args": arguments,
            "epochs": ROUNDS,
            "workers": {"count": 2},
        }
    )
    return Assignment(own.source, str(create_run(root, name, to_yaml(own))))


def test_killed_run_on_two_ranks_resumes_as_a_raw_loop_bit_for_bit(tmp_path: Path) -> None:
    given = (
        written(tmp_path, "killed", killed_at=2 * STEPS + 3, once=str(tmp_path / "once")),
        written(tmp_path, "calm"),
    )
    assert -signal.SIGKILL in until_killed(trained, 2, given[0])
    by_hand = on_ranks(trained, 2, *given)
    killed, calm = runs = [Run(RunFolder(one.location)) for one in given]
    assert [attempt.checkpoint for attempt in killed.folder.read_attempts()] == [None, "epoch-0002"]
    key = ["rank", "phase", "epoch", "iteration", "step", "samples", "batch_size", "loss", "seen"]
    rows = [
        run.stats.sort_values(["rank", "iteration"])[key].reset_index(drop=True) for run in runs
    ]
    assert rows[0].equals(rows[1])
    told = ["epoch", "step", "iteration", "samples", "train/loss", "val/rank"]
    assert calm.metrics[told].equals(killed.metrics[told])
    assert calm.metrics["val/rank"].tolist() == [0.5] * ROUNDS

    for rank, (losses, weights) in enumerate(by_hand):
        assert rows[0][rows[0]["rank"] == rank]["loss"].tolist() == losses
        for run in runs:
            assert [one.tolist() for one in run.weights("last").values()] == weights
    means = [
        [sum(losses[begin : begin + STEPS]) / STEPS for begin in range(0, len(losses), STEPS)]
        for losses, _ in by_hand
    ]
    assert calm.metrics["train/loss"].tolist() == [
        sum(pair) / 2 for pair in zip(*means, strict=True)
    ]


# In one process


class Yields(Task):
    """Trains as a function says."""

    def __init__(self, train: Callable[[TrainingSession], Any]) -> None:
        self._train = train

    def train(self, session: TrainingSession) -> Any:
        return self._train(session)


class Heard(Hook):
    """Keeps the events that reach it."""

    def __init__(self) -> None:
        self.events: list[str] = []


def _hears(event: str) -> Callable[..., None]:
    def heard(self: Heard, state: State, *_: Any) -> None:
        self.events.append(f"{event.removeprefix('on_')} {state.phase}".strip())

    return heard


for _event in EVENTS:
    setattr(Heard, _event, _hears(_event))


def loop_of(
    train: Callable[[TrainingSession], Any],
    root: Path | None = None,
    hooks: Mapping[str, Hook] | None = None,
    **given: Any,
) -> CustomLoop:
    store = CheckpointStore(Storage(root)) if root else None
    length = {name: given.pop(name) for name in ("epochs", "steps") if name in given} or {
        "epochs": 2
    }
    return CustomLoop(
        Yields(train),
        experiment(**length),
        hooks or {},
        RunContext(store=store, recorder=Rows(), **given),
    )


@pytest.mark.filterwarnings("error")
def test_events_fire_in_the_order_of_the_hooked_loop(tmp_path: Path) -> None:
    def train(session: TrainingSession) -> Iterator[Mapping[str, Any]]:
        session.restore(place={})
        for _ in range(2):
            session.record(reward=1.0)
        yield {"train/reward": 2.0, "val/reward": 1.0}
        yield {"train/reward": torch.tensor(3.0, requires_grad=True)}

    heard = Heard()
    loop = loop_of(
        train, tmp_path, {"heard": heard, "checkpoint": Checkpoint(best="val/reward", mode="max")}
    )
    reports = list(loop.run())
    train_round, saved = ["phase_start train", "step train"], ["save train", "saved train"]
    assert heard.events == [
        "start",
        *train_round,
        "step train",
        "phase_end train",
        *saved,
        "phase_start val",
        "phase_end val",
        "report val",
        *train_round,
        "phase_end train",
        *saved,
        "report train",
        "end train",
    ]
    assert [report.metrics["step"] for report in reports] == [2, 3]
    assert [report.is_final for report in reports] == [False, True]
    assert isinstance(loop.runs[0].recorder, Rows)
    # A round in which nothing was recorded has a row too.
    assert [
        (row["epoch"], row["iteration"], row.get("reward")) for row in loop.runs[0].recorder.rows
    ] == [
        (0, 1, 1.0),
        (0, 2, 1.0),
        (1, 3, None),
    ]
    assert loop.runs[0].store
    assert loop.runs[0].store.resolve("best") == "epoch-0001"


class LastEpoch(Hook):
    """Notes the number of the epoch at the end."""

    def on_end(self, state: State) -> None:
        self.number = state.epoch_number


@pytest.mark.parametrize("rows", [0, 1])
def test_train_that_returns_after_its_last_report_begins_no_other_round(
    tmp_path: Path, rows: int
) -> None:
    def train(session: TrainingSession) -> Iterator[Mapping[str, Any]]:
        session.restore(place={})
        while not session.stop_requested and session.epoch < 2:
            for _ in range(rows):
                session.record()
            yield {"train/loss": 1.0}
            session.save()

    heard, last = Heard(), LastEpoch()
    loop = loop_of(train, tmp_path, {"heard": heard, "last": last}, epochs=5)
    assert len(list(loop.run())) == 2
    phases = [event for event in heard.events if event.startswith("phase_")]
    assert phases == ["phase_start train", "phase_end train"] * 2
    assert last.number == 2


def test_stopped_run_resumes_from_the_checkpoint_it_saved(tmp_path: Path) -> None:
    asked = False
    left: list[str] = []

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        nonlocal asked
        place = {"sum": 0}
        assert session.restore(place=place) is (session.step > 0)
        try:
            while not session.stop_requested:
                place["sum"] += session.step
                session.record()
                if session.step == 3 and not left:
                    asked = True
                    session.save()
                if session.step % 5 == 0:
                    yield {"val/sum": place["sum"]}
        finally:
            left.append(f"at {session.step}")

    first = loop_of(train, tmp_path, steps=10, stop_requested=lambda: asked)
    (is_partial,) = first.run()
    assert (is_partial.is_partial, is_partial.interrupted, is_partial.stopped) == (
        True,
        True,
        ("interrupted",),
    )
    asked = False
    second = loop_of(train, tmp_path, steps=10)
    second.restore("step-00000003")
    assert second.runs[0].cursor.stage is Stage.TRAIN
    reports = list(second.run())
    assert [report.metrics["val/sum"] for report in reports] == [sum(range(5)), sum(range(10))]
    assert rows_of(first) + rows_of(second) == [*range(1, 11)]
    # Who has made all steps is not asked for more: the generator is closed where it stands.
    assert left == ["at 3", "at 10"]


def solves(
    yields_at: Collection[int], total: int
) -> Callable[[TrainingSession], Iterator[Mapping[str, float]]]:
    """Yields after some of the steps, and returns after the last: there, or as it is asked to
    stop."""

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        place = {"sum": 0}
        session.restore(place=place)
        while session.step < total:
            place["sum"] += session.step
            session.record()
            if session.step in yields_at:
                yield {"train/sum": place["sum"], "train/loss": 1.0 / session.step}
            if session.stop_requested:
                return

    return train


@dataclass
class Stops(Hook):
    """Asks for the end at a step."""

    at: int = 4

    def on_step(self, state: State) -> None:
        if state.step == self.at:
            state.request_stop("enough")


class StopsAtReport(Hook):
    """Asks for the end in the first report."""

    def on_report(self, state: State, metrics: Mapping[str, Any]) -> None:
        if "train/loss" in metrics:
            state.request_stop("enough")


def test_a_stop_that_a_hook_requests_in_a_report_needs_no_other_round(tmp_path: Path) -> None:
    """The hooked loop notices it after one more iteration; this one cannot interrupt a round."""
    trained = 0

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        nonlocal trained
        session.restore(place={})
        while True:
            for _ in range(5):
                session.record()
                trained += 1
            yield {"train/loss": 1.0}

    hooks = {"stops": StopsAtReport(), "checkpoint": Checkpoint(every=Interval.parse("9 epochs"))}
    first, last = loop_of(train, tmp_path, hooks, epochs=9).run()
    assert trained == 5
    assert (first.stopped, first.is_final, first.is_partial) == ((), False, False)
    assert (last.stopped, last.is_final, last.is_partial) == (("enough",), True, True)
    assert not last.interrupted
    assert CheckpointStore(Storage(tmp_path)).list_names() == ["epoch-0001"]


@pytest.mark.parametrize("every", ["3 steps", "0 epochs"])
@pytest.mark.parametrize(("yields_at", "total"), [((), 4), ((2, 3), 4), ((2, 4), 4)])
@pytest.mark.parametrize("end", ["returns", "steps", "hook"])
def test_steps_after_the_last_yield_are_in_a_report_and_a_checkpoint(
    tmp_path: Path, end: str, yields_at: tuple[int, ...], total: int, every: str
) -> None:
    length = {"steps": total} if end == "steps" else {"epochs": 9}
    hooks: dict[str, Hook] = {
        "checkpoint": Checkpoint(every=Interval.parse(every), best="train/loss")
    }
    hooks |= {"stops": Stops(total)} if end == "hook" else {}
    loop = loop_of(solves(yields_at, 99 if end == "hook" else total), tmp_path, hooks, **length)
    reports = list(loop.run())
    assert [report.metrics["step"] for report in reports] == sorted({*yields_at, total})
    assert rows_of(loop) == [*range(1, total + 1)]
    assert loop.state.max_steps == length.get("steps")
    if total not in yields_at:
        assert reports[-1].is_final or reports[-1].stopped == ("enough",)
        assert not reports[-1].is_partial
    assert loop.runs[0].store
    name = loop.runs[0].store.resolve("last")
    assert loop.runs[0].store.load(name, "place.pt") == {"sum": sum(range(total))}
    # Another run continues from a copy, and not to the stop again.
    copies = CheckpointStore(Storage(tmp_path / "longer"))
    copies.copy_from(loop.runs[0].store, name)
    longer = loop_of(solves((), 99), tmp_path / "longer", steps=6)
    longer.restore(name)
    list(longer.run())
    assert rows_of(longer) == ([5, 6] if end != "returns" or total in yields_at else [])


@pytest.mark.parametrize("save_last", [True, False])
@pytest.mark.parametrize("end", ["returns", "early_stopping"])
def test_end_at_a_report_is_saved_once_if_the_last_is_to_be_saved(
    tmp_path: Path, end: str, save_last: bool
) -> None:
    hooks: dict[str, Hook] = {"checkpoint": Checkpoint(every=Interval(0), save_last=save_last)}
    if end == "early_stopping":
        hooks["early_stopping"] = EarlyStopping("train/loss", patience=9, stopping_threshold=0.25)
    train = solves((2, 4), 4 if end == "returns" else 99)
    loop = loop_of(train, tmp_path, hooks, epochs=50)
    assert [report.metrics["step"] for report in loop.run()] == [2, 4]
    store = loop.runs[0].store
    assert store
    assert [store.read_position(name).step for name in store.list_names()] == [4] * save_last
    if save_last:
        assert store.load("epoch-0002", "place.pt") == {"sum": sum(range(4))}


class Unsaved:
    """A part of a checkpoint whose state cannot be read."""

    def state_dict(self) -> Any:
        raise OSError("cannot be read")

    def load_state_dict(self, state: Any) -> None: ...


def test_round_is_incomplete_after_a_save_at_its_beginning_failed(tmp_path: Path) -> None:
    is_interrupted = False

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        nonlocal is_interrupted
        session.restore(part=Unsaved())
        with pytest.raises(OSError, match="cannot be read"):
            session.save()
        session.record()
        is_interrupted = True
        yield from ()

    loop = loop_of(train, tmp_path, stop_requested=lambda: is_interrupted)
    (report,) = loop.run()
    assert (report.interrupted, report.is_partial) == (True, True)
    assert loop.runs[0].cursor.stage is Stage.TRAIN


def rows_of(loop: CustomLoop) -> list[int]:
    assert isinstance(loop.runs[0].recorder, Rows)
    return [row["iteration"] for row in loop.runs[0].recorder.rows]


def test_loop_with_callbacks_waits_while_a_report_is_handled() -> None:
    order: list[str] = []

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        def trainer() -> None:
            try:
                for number in range(9):
                    order.append(f"trains {number}")
                    session.report({"train/number": number})
            finally:
                order.append("leaves")

        yield from session.run_in_thread(trainer)

    for report in loop_of(train).run():
        order.append(f"sees {report.metrics['train/number']:.0f}")
    assert order == ["trains 0", "sees 0", "trains 1", "sees 1", "leaves"]

    def fails(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        yield from session.run_in_thread(lambda: [][0])

    with pytest.raises(IndexError):
        next(loop_of(fails).run())


def test_process_ends_although_a_trainer_waits_for_a_failed_loop() -> None:
    code = """
        import torch
        from orchestrator.training_session import _Call
        call = _Call(lambda: call.report({"train/loss": 1.0}), torch.device("cpu"))
        reports = call.reports()
        next(reports)
        1 / 0
    """
    ended = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert "ZeroDivisionError" in ended.stderr


def yields(*reports: Any) -> Callable[[TrainingSession], Iterator[Any]]:
    def train(session: TrainingSession) -> Iterator[Any]:
        session.restore(place={"numbers": [1, 2]})
        yield from reports

    return train


def restores(**parts: Any) -> Callable[[TrainingSession], Iterator[Any]]:
    def train(session: TrainingSession) -> Iterator[Any]:
        session.restore(**parts)
        yield {"train/loss": 1.0}

    return train


def records(**columns: Any) -> Callable[[TrainingSession], Iterator[Any]]:
    def train(session: TrainingSession) -> Iterator[Any]:
        session.record(**columns)
        yield {"train/loss": 1.0}

    return train


def reports_nothing(session: TrainingSession) -> Iterator[Any]:
    nothing: Any = None
    yield from session.run_in_thread(lambda: session.report(nothing))


def reports_elsewhere(session: TrainingSession) -> Iterator[Any]:
    session.report({"train/loss": 1.0})
    yield {}


def reports_between(session: TrainingSession) -> Iterator[Any]:
    for metrics in session.run_in_thread(lambda: session.report({"train/loss": 1.0})):
        session.report({"val/loss": 1.0})
        yield metrics


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (yields(), r"train\(\) ended without a report or a row"),
        (yields(3.0), "yields 3.0; expected a mapping"),
        (
            yields({"train/loss": 1.0}, None),
            r"yields None; expected .*, such as \{'train/loss': 0.5\}",
        ),
        (reports_nothing, "yields None; expected a mapping of metrics to numbers"),
        (yields({}), "expected a mapping of metrics to numbers"),
        (yields({"loss": 1.0}), "as in 'train/loss'"),
        (yields({"val/": 1.0}), "yields 'val/'"),
        (yields({"val/loss": torch.ones(2)}), r"yields a tensor of shape \(2,\) for 'val/loss'"),
        (yields({"val/loss": "low"}), "yields a str for 'val/loss'"),
        (restores(model=3), "got an int as 'model'; expected a dict, or an object with state_dict"),
        (restores(hooks={}), "a part 'hooks'"),
        (restores(env={"grid": [object()]}), r"cannot hold env\['grid'\]\[0\], a builtins.object"),
        (records(step=1), "the loop records the column `step`"),
        (records(batch_size=1.5), "batch_size=1.5"),
        (reports_elsewhere, "write `yield metrics`"),
        (reports_between, "write `yield metrics`"),
        (lambda session: [{"train/loss": 1.0}], "returns a list; expected a generator"),
    ],
)
def test_mistake_in_the_task_is_refused_with_advice(tmp_path: Path, train: Any, said: str) -> None:
    with pytest.raises((TaskError, RunError, RuntimeError, ValueError), match=said):
        list(loop_of(train, tmp_path, {"checkpoint": Checkpoint()}).run())


def test_checkpoint_of_other_parts_is_refused(tmp_path: Path) -> None:
    list(loop_of(yields({"train/loss": 1.0}), tmp_path, {"checkpoint": Checkpoint()}).run())
    for train, said in (
        (restores(other={}), "holds place, but session.restore\\(\\) got other"),
        (records(loss=1.0), "must call session.restore\\(\\) before training"),
    ):
        loop = loop_of(train, tmp_path)
        loop.restore("epoch-0001")
        with pytest.raises((CheckpointError, TaskError), match=said):
            list(loop.run())


@pytest.mark.parametrize("is_new_rank", [False, True])
def test_parts_of_each_rank_need_the_same_number_of_ranks(
    tmp_path: Path, is_new_rank: bool
) -> None:
    list(loop_of(restores(per_rank={"place": {}}), tmp_path, {"checkpoint": Checkpoint()}).run())
    manifest = tmp_path / "epoch-0001" / "manifest.json"
    entries = json.loads(manifest.read_text())
    if is_new_rank:
        del entries["files"]["rank-0000.pt"]
    manifest.write_text(json.dumps(entries | {"world_size": 2}))
    with pytest.raises(CheckpointError, match=r"holds place of 2 ranks; set workers.count"):
        loop_of(restores(per_rank={"place": {}}), tmp_path).restore("epoch-0001")


def test_loop_without_parts_says_that_it_saves_no_checkpoint(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level("INFO", logger="hookyard"):
        loop = loop_of(records(loss=1.0), tmp_path, {"checkpoint": Checkpoint()})
        training = loop.run()
        next(training)
    assert "no checkpoint is saved, as train() does not call session.restore()" in caplog.text
    with pytest.raises(TaskError, match=r"must call session\.restore"):
        loop.save()


def disagrees(rank: int, world_size: int) -> str:
    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        yield {"train/loss": 1.0}
        if rank == 0:
            yield {"train/loss": 1.0}

    try:
        list(loop_of(train, world=World(rank, world_size), epochs=3).run())
    except RankMismatch as error:
        dist.barrier()
        return str(error)
    return ""


def test_ranks_with_different_reports_are_refused_instead_of_hanging() -> None:
    for said in on_ranks(disagrees):
        assert "but rank 0 yields train/loss and rank 1 has ended" in said


class Elapsed(Hook):
    """Notes how long phases have lasted when they are told of."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_phase_start(self, state: State) -> None:
        self.seconds.append(state.elapsed_s)


def test_row_recorded_before_the_generator_exists_counts_from_the_call_of_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (task_training, clock):
        monkeypatch.setattr(module, "perf_counter", lambda: 1000.0)

    def train(session: TrainingSession) -> Iterator[Mapping[str, float]]:
        session.record()
        return yields({"train/loss": 1.0})(session)

    elapsed = Elapsed()
    list(loop_of(train, hooks={"elapsed": elapsed}, epochs=1).run())
    assert elapsed.seconds == [0.0]


@dataclass
class Slow(Task):
    """Takes its time for each row, and names the parts of its checkpoints, or not."""

    names_parts: bool = False
    rows: int = 2

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        if self.names_parts:
            session.restore()
        for _ in range(2):
            for _ in range(self.rows):
                sleep(0.02)
                session.record(batch_size=10)
            if not self.rows:
                sleep(0.02)
            yield {"train/loss": 1.0}


@pytest.mark.parametrize("fields", [{}, {"names_parts": True}, {"rows": 0}])
def test_times_include_the_first_iteration(fields: dict[str, Any]) -> None:
    """The loop hears of a phase with its first row, or its report, unless `restore` begins it."""
    trained = testing.train({"perf_stats": PerfStats()}, Slow(**fields), epochs=2)
    assert min(row["step_s"] for row in trained.rows) >= 0.02
    assert min(report["train/iteration_s"] for report in trained.reports) >= 0.02
