import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassF1Score

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.errors import HookError
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.error_origin import is_user_error
from orchestrator.errors import CheckpointError, ConfigError, RunError, TaskError
from orchestrator.experiment.checks.data import check_data
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.iterable_tasks import IterablePoints, Placed, Shuffled
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, Seen, experiment, numbers


def trained(
    task: Points, hooks: dict[str, Any] | None = None, **fields: Any
) -> tuple[list[dict[str, Any]], list[list[int]], Loop]:
    """What a run in this process reports, and the samples of its training batches."""
    seen = Seen()
    loop = Loop(
        task,
        experiment(**fields),
        {"sampler_seed": DistSamplerSeed(), **(hooks or {}), "seen": seen},
    )
    return [report.metrics for report in loop.run()], seen.indices, loop


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def test_without_torchdata_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(
        ConfigError, match=r"iterable dataset.*torchdata.*pip install 'hookyard\[torchdata\]'"
    ):
        trained(IterablePoints(kind="placed", val=0), epochs=1)


# Epochs


def test_run_on_a_stream_equals_a_raw_loop_bit_for_bit() -> None:
    reports, seen, loop = trained(IterablePoints(kind="placed", val=0), epochs=2, accumulate=2)
    torch.manual_seed(0)
    model = Points().model()
    dataset = Placed(PointSet(52, False, 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = list(StatefulDataLoader(dataset, 8))
        groups = [batches[begin : begin + 2] for begin in range(0, len(batches), 2)]
        for group in groups:
            for points, labels, places in group:
                order.append(places.tolist())
                (functional.cross_entropy(model(points), labels) / len(group)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen == order
    assert numbers(loop.state.module) == numbers(model)
    assert [(report["epoch"], report["step"], report["samples"]) for report in reports] == [
        (0, 4, 52),
        (1, 8, 104),
    ]


def test_epochs_of_a_stream_without_a_length_continue_its_passes() -> None:
    reports, seen, _ = trained(IterablePoints(), epochs=3, epoch_steps=3, accumulate=2)
    assert [(report["epoch"], report["step"], report["iteration"]) for report in reports] == [
        (0, 3, 6),
        (1, 6, 12),
        (2, 9, 18),
    ]
    places = flat(seen)
    assert sorted(places[:52]) == sorted(places[52:104]) == list(range(52))
    assert places[:52] != places[52:104]
    assert len(seen[6]) == 4, "the last batch of a pass"
    assert [
        len(batch)
        for batch in trained(IterablePoints(), epochs=3, epoch_steps=3, loader={"drop_last": True})[
            1
        ]
    ] == [8] * 9


def test_training_ends_with_the_data(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "hookyard"):
        reports, seen, loop = trained(
            IterablePoints(train=36), steps=100, accumulate=2, loader={"on_exhausted": "stop"}
        )
    assert (len(seen), sorted(flat(seen))) == (5, list(range(36)))
    assert [(report["step"], "val/loss" in report) for report in reports] == [(2, True)]
    assert "the training data is used up after 2 steps; the run ends there" in caplog.text
    assert all(parameter.grad is None for parameter in loop.state.module.parameters())
    assert (loop.state.finished, loop.state.max_steps) == (True, 100)


# Evaluation


@dataclass
class Metered(IterablePoints):
    def meters(self) -> Any:
        return {"f1": MulticlassF1Score(3)}


def _on_two(rank: int, world_size: int, root: str) -> dict[str, Any]:
    world = World(rank, world_size, rank)
    found = {}
    for strategy in ("ddp", "fsdp"):
        loop = Loop(
            IterablePoints(val=17, kind="placed"),
            experiment(epochs=1, workers={"count": 2, "strategy": strategy}),
            {},
            RunContext(world=world),
        )
        found[strategy] = [report.metrics for report in loop.run()]
    seen = Seen()
    # Rank 0 has 13 samples and rank 1 has 12: a batch of one more.
    stops = Loop(
        IterablePoints(train=25),
        experiment(steps=100, batch_size=4, loader={"on_exhausted": "stop"}),
        {"seen": seen},
        RunContext(world=world),
    )
    found["stopped"] = [(report.metrics["step"], stops.state.finished) for report in stops.run()]
    wrapped = Loop(
        IterablePoints(train=25), experiment(steps=8, batch_size=4), {}, RunContext(world=world)
    )
    found["wrapped"] = [report.metrics["step"] for report in wrapped.run()]
    found["seen"] = seen.indices
    try:
        list(
            Loop(
                Metered(val=1), experiment(epochs=1, epoch_steps=2), {}, RunContext(world=world)
            ).run()
        )
    except TaskError as error:
        found["error"] = str(error)
    some, none = (Shuffled(PointSet(size, False, 0)) for size in (40, 0))
    for name, task in (
        ("nothing to train", IterablePoints(train=1)),
        ("nothing to validate", Given(given=some, others={"val": none})),
    ):
        try:
            list(
                Loop(
                    task,
                    experiment(steps=2, loader={"on_exhausted": "stop"}),
                    {},
                    RunContext(world=world),
                ).run()
            )
        except TaskError as error:
            found[name] = str(error)
    store = CheckpointStore(Storage(root), is_master=world.is_master)
    loop = Loop(IterablePoints(), experiment(steps=4), {}, RunContext(world=world, store=store))
    reports = loop.run()
    next(reports)
    loop.save()
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("of two")


@pytest.fixture(scope="module")
def two(root: Path) -> list[dict[str, Any]]:
    return on_ranks(_on_two, 2, str(root))


def test_ranks_share_a_stream_and_stop_together_at_its_end(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert found["stopped"] == [(3, True)]
        assert found["wrapped"] == [8]
        assert found["fsdp"][0]["val/loss"] == pytest.approx(found["ddp"][0]["val/loss"], abs=1e-5)
        assert found["error"] == "meters need a val sample on each rank, but rank 1 has none"
        assert (
            found["nothing to train"]
            == "the train dataset ended before the first step (batches: 0, accumulate: 1)"
        )
        assert (
            found["nothing to validate"]
            == "the val data has no sample: add some, or remove val from data()"
        )
    seen = flat(two[0]["seen"]) + flat(two[1]["seen"])
    assert len(set(seen)) == len(seen) == 24
    assert two[0]["ddp"] == two[1]["ddp"]


def test_stream_needs_the_same_number_of_ranks_to_resume(
    two: list[dict[str, Any]], root: Path
) -> None:
    loop = Loop(
        IterablePoints(), experiment(steps=4), {}, RunContext(store=CheckpointStore(Storage(root)))
    )
    with pytest.raises(
        CheckpointError, match="as many ranks as before: 2, got 1; resume with --workers 2"
    ):
        loop.restore("epoch-0001")


def test_stream_needs_the_same_loader_processes_to_resume() -> None:
    data = build_data(IterablePoints(), experiment(steps=4, loader={"num_workers": 2}), World())
    position = {"epoch": 0, "number": 0, "loader_workers": 0}
    for state in (position, {**position, "loader": {}}):
        with pytest.raises(CheckpointError, match=r"set loader.num_workers=0, got 2"):
            data.train.restore(state, 1)
    with pytest.raises(
        CheckpointError, match="was made with map-style data and has no position in it"
    ):
        data.train.restore(None, 1)


# Beside the training


def test_fresh_batches_of_a_stream_have_no_effect_on_training() -> None:
    for kind in ("shuffled", "placed"):
        data = build_data(IterablePoints(kind=kind), experiment(steps=5), World())
        whole = [
            batch[2].tolist() for _, batch in zip(range(5), data.train.begin(0, 0), strict=False)
        ]
        data = build_data(IterablePoints(kind=kind), experiment(steps=5), World())
        batches = data.train.begin(0, 0)
        seen = [next(batches)[2].tolist()]
        before = torch.get_rng_state()
        fresh = [batch[2].tolist() for batch in data.fresh_batches("train")]
        assert fresh == [batch[2].tolist() for batch in data.fresh_batches("train", shuffled=True)]
        assert data.first_sample("train")[2].tolist() == fresh[0][:1]
        assert torch.equal(before, torch.get_rng_state())
        assert len(fresh) == data.train.length() == (5 if kind == "shuffled" else 7)
        assert seen + [next(batches)[2].tolist() for _ in range(4)] == whole
        assert len(flat([batch[2].tolist() for batch in data.fresh_batches("val")])) == 23


class Numbers(IterableDataset[Any]):
    """Endless samples, which counts those that it has read."""

    read = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.read += 1
            yield torch.zeros(5), 0, self.read


@pytest.mark.parametrize("is_resumed", [False, True])
def test_closing_reads_nothing_of_data_without_a_length(is_resumed: bool) -> None:
    numbers = Numbers()
    task = Given(given=numbers)
    data = build_data(task, experiment(steps=5), World())
    next(data.train.begin(0, 0))
    if is_resumed:
        position = data.train.state_dict()
        data = build_data(task, experiment(steps=5), World())
        data.train.restore(position, 1)
        next(data.train.begin(0, 0))
    read = numbers.read
    data.close()
    assert numbers.read == read


# What is refused


class Failing(IterableDataset[Any]):
    def __init__(self, after: int) -> None:
        self.after = after

    def __iter__(self) -> Iterator[Any]:
        for place in range(self.after):
            yield torch.zeros(5), 0, place
        raise OSError("no such shard")


@dataclass
class Given(Points):
    """Data that is made where it is asked for."""

    given: Any = None
    others: dict[str, Any] = field(default_factory=dict)

    def data(self) -> Any:
        return {"train": self.given, **self.others}


def test_error_of_a_stream_names_its_phase() -> None:
    with pytest.raises(RunError, match="the train dataset fails: OSError: no such shard"):
        list(Loop(Given(given=Failing(9)), experiment(steps=4), {}).run())
    with pytest.raises(TaskError, match="the train dataset has no batch in pass 1"):
        list(
            Loop(
                Given(given=Placed(PointSet(5, False, 0))),
                experiment(epochs=1, epoch_steps=3, loader={"drop_last": True}),
                {},
            ).run()
        )


def test_a_run_goes_on_with_other_passes_where_an_exhausted_one_has_ended(tmp_path: Path) -> None:
    def make(steps: int, on_exhausted: str) -> Loop:
        settings = experiment(steps=steps, loader={"on_exhausted": on_exhausted})
        context = RunContext(store=CheckpointStore(Storage(tmp_path)))
        return Loop(IterablePoints(train=36), settings, {"checkpoint": Checkpoint()}, context)

    # 36 samples are four batches of 8, and one of 4.
    assert [report.metrics["step"] for report in make(100, "stop").run()][-1] == 5
    loop = make(12, "restart")
    loop.restore(CheckpointStore(Storage(tmp_path)).list_names()[-1])
    assert [report.metrics["step"] for report in loop.run()][-1] == 12


class Sampled(IterableDataset[Any]):
    """Samples points at random, without an end."""

    def __init__(self, points: PointSet) -> None:
        self.points = points

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.points[random.randrange(len(self.points))]


@dataclass
class SampledPoints(Points):
    def data(self) -> Any:
        phases = super().data()
        return {**phases, "train": Sampled(phases["train"])}


def test_batch_that_was_fetched_ahead_is_the_same_after_a_phase_without_iterations(
    tmp_path: Path,
) -> None:
    """The resumed run ends its epoch at once, and saves."""
    seen = Seen()

    def make(epoch_steps: int) -> Loop:
        settings = experiment(
            steps=6,
            epoch_steps=epoch_steps,
            validate_every=Interval(2, "steps"),
            loader={"on_exhausted": "stop"},
        )
        context = RunContext(store=CheckpointStore(Storage(tmp_path)))
        return Loop(SampledPoints(), settings, {"seen": seen}, context)

    first = make(6)
    reports = first.run()
    next(reports)
    saved = first.save()
    next(reports)
    expected = seen.indices[2]
    reports.close()

    second = make(2)
    second.restore(saved)
    reports = second.run()
    assert next(reports).metrics["step"] == 2
    saved = second.save()
    reports.close()

    seen.indices.clear()
    third = make(2)
    third.restore(saved)
    reports = third.run()
    assert next(reports).metrics["step"] == 4
    reports.close()
    assert seen.indices[0] == expected


class FailingAtItsEnd(Failing):
    def __len__(self) -> int:
        return self.after


class FailsAfterValidation(Hook):
    def on_phase_end(self, state: State) -> None:
        if state.phase == "val":
            raise TypeError("the hook fails")


def test_error_while_data_is_closed_does_not_replace_the_failure() -> None:
    task = Given(given=FailingAtItsEnd(48), others={"val": PointSet(5, False, 0)})
    loop = Loop(task, experiment(batch_size=8, epochs=2), {"fails": FailsAfterValidation()})
    with pytest.raises(HookError, match="the hook fails"):
        list(loop.run())


class Stuck(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        Event().wait()
        yield


class Killed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield


@pytest.mark.parametrize(
    ("dataset", "message"),
    [(Stuck(), "DataLoader timed out after"), (Killed(), "DataLoader worker")],
)
def test_failure_of_the_loader_itself_is_not_a_mistake(
    dataset: IterableDataset[Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    loader: Any = StatefulDataLoader(dataset, 4, num_workers=1, timeout=2)
    with pytest.raises(RuntimeError, match=message) as caught:
        list(Loop(Given(given=loader), experiment(steps=4, batch_size=32), {}).run())
    assert not is_user_error(caught.value)


def test_failure_of_a_dataset_in_a_loader_process_is_a_mistake() -> None:
    with pytest.raises(
        RunError, match=r"the train dataset fails: OSError: (?s:.*)no such shard"
    ) as caught:
        list(
            Loop(Given(given=Failing(9)), experiment(steps=4, loader={"num_workers": 1}), {}).run()
        )
    assert is_user_error(caught.value)


LOADER: Any = StatefulDataLoader(PointSet(9, False, 0), 4)


ENDLESS = r"epochs: needs epoch_steps, as the train data is an iterable dataset without __len__; or set steps"
NO_STATE = Given(given=DataLoader(PointSet(9, False, 0)))
OWN = Given(given=LOADER, others={"val": LOADER})
OWN_TRAIN = Given(given=LOADER, others={"val": PointSet(7, False, 1)})
EVAL_SIZE: dict[str, Any] = {"loader": {"eval_batch_size": 4}}


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        (IterablePoints(), {"epochs": 2}, ENDLESS),
        (
            IterablePoints(kind="iterator"),
            {"steps": 2},
            r"\(iterator\) is an iterator, which ends after one pass",
        ),
        (
            IterablePoints(kind="nothing"),
            {"steps": 2},
            r"\(object\) needs __len__ and __getitem__, or __iter__",
        ),
        (
            Points(),
            {"epoch_steps": 2},
            r"epoch_steps: has no effect: the train data \(PointSet\) is map-style",
        ),
        (
            Points(),
            {"loader": {"on_exhausted": "stop"}},
            r"loader.on_exhausted: has no effect: .* is map-style",
        ),
        (
            IterablePoints(),
            {"steps": 2, "workers": {"count": [1, 2]}},
            r"workers.count: must be one number, as the train data is iterable",
        ),
        (
            NO_STATE,
            {"steps": 2, "batch_size": 32},
            r"its train loader \(DataLoader\) has no state_dict",
        ),
        (
            Given(given=LOADER),
            {"steps": 2},
            r"batch_size: has no effect: Given.data\(\) returns its own loaders",
        ),
        (OWN_TRAIN, {"steps": 2, "loader": {"drop_last": True}}, "loader.drop_last: has no effect"),
        (OWN, {"steps": 2, "batch_size": 32, **EVAL_SIZE}, "loader.eval_batch_size: has no effect"),
        (
            IterablePoints(kind="placed", train=5),
            {"epochs": 1, "loader": {"drop_last": True}},
            "batch_size: is 8, but the train dataset fills no such batch",
        ),
    ],
)
def test_invalid_data_is_refused_before_training_and_in_a_validation(
    task: Points, fields: dict[str, Any], message: str
) -> None:
    """Validation says the same."""
    with pytest.raises(ConfigError, match=message) as caught:
        build_data(task, experiment(**fields), World())
    assert caught.value.problems[0] in check_data(experiment(**fields), task)


def test_own_loader_is_used_as_it_is() -> None:
    loader: Any = StatefulDataLoader(PointSet(9, False, 0), 4)
    task = Given(given=loader, others={"val": DataLoader(PointSet(7, False, 1), 3)})
    reports, seen, _ = trained(task, epochs=2, batch_size=32)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8]] * 2
    assert [(report["epoch"], report["step"], "val/loss" in report) for report in reports] == [
        (0, 3, True),
        (1, 6, True),
    ]
