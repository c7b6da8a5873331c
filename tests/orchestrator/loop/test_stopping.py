from pathlib import Path
from typing import Any, cast

import pytest

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop import stopping as stopping_module
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import Limits, RunContext
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.manual_clock import ManualClock
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers

# When ranks ask each other


class Two:
    """A world of two whose other rank gives fixed answers; counts how often it is asked."""

    world_size = 2

    def __init__(
        self, asked: bool = False, iteration_s: float = 0.0, waited_s: float = 0.0
    ) -> None:
        self.other = [float(asked), iteration_s, -waited_s]
        self.calls = 0

    def maximum(self, values: list[float]) -> list[float]:
        self.calls += 1
        return [max(pair) for pair in zip(values, self.other, strict=True)]


def clock_after(iteration_s: float) -> SpanClock:
    """A clock whose last iteration took so long."""
    clock = SpanClock()
    clock.iteration_s = iteration_s
    return clock


def stopping_of(
    world: Two | World, clock: SpanClock, state: State | None = None
) -> StopCoordinator:
    return StopCoordinator(state or State(), cast(World, world), clock, lambda: False)


def asked_at(world: Two, iterations: int, iteration_s: float) -> list[int]:
    """The iterations at which the ranks ask each other."""
    state, found = State(), []
    stopping = stopping_of(world, clock_after(iteration_s), state)
    for iteration in range(1, iterations + 1):
        state.iteration = iteration
        if iteration >= stopping.next_check:
            stopping.is_stop_requested()
            found.append(iteration)
    assert world.calls == len(found)
    return found


def test_ranks_check_about_every_quarter_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_module, "CHECK_EVERY_S", 0.25)
    assert asked_at(Two(), 12, 0.05) == [1, 6, 11]
    # the slowest rank sets the pace, so that all choose the same iterations
    assert asked_at(Two(iteration_s=0.125), 6, 0.05) == [1, 3, 5]
    assert asked_at(Two(), 3, 10.0) == [1, 2, 3]
    assert asked_at(Two(), 1500, 1e-9) == [1, 1001]


def test_slow_checks_take_no_more_than_their_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand ranks, a collective of 40 ms and steps of 10 ms; some steps are delayed."""
    time = ManualClock()
    monkeypatch.setattr(stopping_module, "perf_counter", time)

    class Many(Two):
        def maximum(self, values: list[float]) -> list[float]:
            time.now += 0.04 + 2.0 * (self.calls % 4 == 3)
            return super().maximum(values)

    state, world = State(), Many(waited_s=0.05)
    stopping = stopping_of(world, clock_after(0.01), state)
    for state.iteration in range(1, 20_001):
        time.now += 0.01
        if state.iteration >= stopping.next_check:
            before = world.calls
            stopping.is_stop_requested()
    assert before == pytest.approx(20_000 * 0.01 * 0.005 / 0.04, rel=0.2)
    assert asked_at(Two(waited_s=0.001), 12, 0.05) == [1, 6, 11], (
        "what costs little is asked as often as ever"
    )


def test_wait_for_other_ranks_is_added_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank answers after three seconds, each of the two times it is asked."""
    now = iter([100.0, 103.0, 200.0, 203.0])
    monkeypatch.setattr(stopping_module, "perf_counter", lambda: next(now))
    clock = clock_after(0.25)
    stopping = stopping_of(Two(), clock)
    assert [stopping.is_stop_requested(), stopping.is_stop_requested()] == [False, False]
    assert clock.waiting_s == 6.0


class Others(World):
    """A world whose other ranks have these stop reasons and pause reasons."""

    def __init__(self, *others: tuple[list[str], list[str]]) -> None:
        super().__init__()
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def test_reasons_of_all_ranks_are_joined_and_a_stop_outranks_a_pause() -> None:
    """If early stopping ends the run while it is interrupted, a resume must not train on."""
    for stops, expected in (
        ([], ("interrupted", "time is up")),
        (["enough"], ("enough", "interrupted", "time is up")),
    ):
        world = Others((stops, ["time is up"]), (stops, []))
        stop = StopCoordinator(State(), world, SpanClock(), lambda: True).agree()
        assert stop.reasons == expected
        assert stop.is_interruption == (not stops)


# Where a run ends


class StopAt(Hook):
    """Asks for the run to end at an iteration, at the end of a training phase, or in a report."""

    def __init__(self, iteration: int, event: str = "on_step") -> None:
        self.iteration, self.event = iteration, event
        self.ended = False

    def on_step(self, state: State) -> None:
        if self.event == "on_step" and state.iteration == self.iteration:
            state.request_stop("enough")

    def on_phase_end(self, state: State) -> None:
        if self.event == "on_phase_end" and state.iteration == self.iteration:
            state.request_stop("enough")

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        if self.event == "on_report" and state.iteration == self.iteration:
            state.request_stop("enough")

    def on_end(self, state: State) -> None:
        self.ended = True


def test_hook_stops_the_run_after_a_round_and_the_test_phase_runs() -> None:
    hook = StopAt(14, "on_phase_end")
    reports = list(Loop(Points(test=5), experiment(epochs=9), {"stop": hook}).run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.is_final) for r in reports] == [
        (7, (), False, False),
        (14, ("enough",), False, False),
        (14, ("enough",), False, True),
    ]
    assert "val/loss" in reports[1].metrics
    assert "test/loss" in reports[2].metrics
    assert hook.ended


@pytest.mark.parametrize("test", [0, 5])
def test_hook_stops_the_run_in_a_report(test: int) -> None:
    """No step follows."""
    hook = StopAt(14, "on_report")
    loop = Loop(Points(test=test), experiment(epochs=9), {"stop": hook})
    reports = list(loop.run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.is_final) for r in reports] == [
        (7, (), False, False),
        (14, (), False, False),
        (14, ("enough",), False, True),
    ]
    assert loop.state.iteration == 14
    assert ("test/loss" in reports[2].metrics) is bool(test)
    assert hook.ended


def test_hook_stops_the_run_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    loop = Loop(Points(), experiment(epochs=9), {"stop": StopAt(10)}, RunContext(store=store))
    reports = list(loop.run())
    assert [(r.metrics["step"], r.stopped, r.interrupted, r.is_final) for r in reports] == [
        (7, (), False, False),
        (10, ("enough",), False, True),
    ]
    assert store.list_names() == ["step-00000010"]
    assert not reports[1].is_partial
    assert {"train/loss", "val/loss"} <= reports[1].metrics.keys()


@pytest.mark.parametrize("event", ["on_step", "on_phase_end", "on_report"])
def test_a_run_stops_at_the_same_place_from_any_checkpoint(tmp_path: Path, event: str) -> None:
    """Also from one that was saved between the request and the end."""
    store = CheckpointStore(Storage(tmp_path))

    def make() -> Loop:
        iteration = 10 if event == "on_step" else 14
        hooks = {
            "stop": StopAt(iteration, event),
            "checkpoint": Checkpoint(every=Interval(1, "steps"), keep=None),
        }
        return Loop(Points(), experiment(epochs=9), hooks, RunContext(store=store))

    whole = make()
    expected = [report.metrics for report in whole.run()]
    names = store.list_names()
    assert len(names) >= 10
    for name in names:
        resumed = make()
        resumed.restore(name)
        reports = [report.metrics for report in resumed.run()]
        assert reports == expected[len(expected) - len(reports) :], name
        assert resumed.state.iteration == whole.state.iteration, name
        assert numbers(resumed.state.module) == numbers(whole.state.module), name


def test_interrupted_run_stops_after_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    store, calls = CheckpointStore(Storage(tmp_path)), []

    def stop_requested() -> bool:
        calls.append(1)
        return len(calls) >= 5

    loop = Loop(
        Points(),
        experiment(accumulate=2),
        {},
        RunContext(store=store, stop_requested=stop_requested),
    )
    reports = list(loop.run())
    assert [(r.stopped, r.interrupted, r.is_final) for r in reports][-1] == (
        ("interrupted",),
        True,
        True,
    )
    assert store.read_position(store.list_names()[-1]).iteration == loop.state.iteration
    # asked at the steps alone, never between the micro-batches of one
    assert (loop.state.phase_iteration % 2 == 0) or loop.state.phase_iteration == 7


@pytest.mark.parametrize("last", [7, 10])
def test_run_is_interrupted_after_its_last_iteration_without_a_checkpoint(
    tmp_path: Path, last: int
) -> None:
    """At the end of an epoch of 7 iterations, or between the two micro-batches of a step."""
    store = CheckpointStore(Storage(tmp_path))
    context = RunContext(store=store, limits=Limits(last_iteration=last))
    loop = Loop(Points(), experiment(accumulate=2), {}, context)
    *_, report = loop.run()
    assert (loop.state.iteration, report.metrics["iteration"]) == (last, last)
    assert (report.stopped, report.is_partial, report.is_final) == (("interrupted",), True, True)
    assert store.list_names() == []


class PauseAt(Hook):
    """Asks for a pause at the end of a phase."""

    def __init__(self, phase: str, rank: int = 0) -> None:
        self.phase, self.rank = phase, rank

    def on_phase_end(self, state: State) -> None:
        if state.phase == self.phase and state.rank == self.rank:
            state.request_pause("time is up")

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        if self.phase == "report" and state.epoch == 1:
            state.request_pause("time is up")


@pytest.mark.parametrize("phase", ["train", "val", "report"])
def test_paused_run_resumes_bit_for_bit(tmp_path: Path, phase: str) -> None:
    whole = Loop(Points(test=5), experiment(), {})
    expected = list(whole.run())
    store = CheckpointStore(Storage(tmp_path))
    begun = list(
        Loop(Points(test=5), experiment(), {"pause": PauseAt(phase)}, RunContext(store=store)).run()
    )
    *reported, last = [(r.metrics["step"], r.stopped, r.interrupted, r.is_final) for r in begun]
    assert last == (7, ("time is up",), True, True)
    assert reported == ([(7, (), False, False)] if phase == "report" else [])
    resumed = Loop(Points(test=5), experiment(), {}, RunContext(store=store))
    resumed.restore(store.list_names()[-1])
    rest = list(resumed.run())
    assert [r.metrics for r in rest if r.metrics["step"] > 7] == [
        r.metrics for r in expected if r.metrics["step"] > 7
    ]
    assert numbers(resumed.state.module) == numbers(whole.state.module)


def _stop_on_rank_1(rank: int, world_size: int, root: str) -> list[Any]:
    """Reports and checkpoints of two ranks that check at each step, or rarely, whether the other
    was asked to stop."""

    def train(check_every_s: float) -> tuple[list[Any], list[str]]:
        stopping_module.CHECK_EVERY_S = check_every_s
        store = CheckpointStore(Storage(f"{root}/{check_every_s}"), is_master=rank == 0)
        context = RunContext(
            world=World(rank, world_size, rank),
            store=store,
            stop_requested=lambda: rank == 1 and loop.state.step >= 3,
        )
        loop = Loop(Points(), experiment(batch_size=4), {}, context)
        return [
            (r.metrics["step"], r.stopped, r.interrupted, r.is_final) for r in loop.run()
        ], store.list_names()

    return [train(0.0), train(1e9)]


def test_stop_requested_on_one_rank_ends_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    first, second = on_ranks(_stop_on_rank_1, 2, str(tmp_path))
    assert first == second
    assert first[0] == ([(3, ("interrupted",), True, True)], ["step-00000003"])
    assert first[1] == ([(7, ("interrupted",), True, True)], ["epoch-0001"]), (
        "at the end of the round at the latest"
    )
