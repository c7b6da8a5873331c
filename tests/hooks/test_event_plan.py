import logging
import pickle
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from hooks import Hook, HookError, Interval, Plan, Priority, Ranks, State, at_interval


class Noting(Hook):
    """Writes its name down at each step."""

    def __init__(self, notes: list[str] | None = None, **attributes: Any) -> None:
        self.notes = [] if notes is None else notes
        for name, value in attributes.items():
            setattr(self, name, value)

    def on_step(self, state: State) -> None:
        self.notes.append(self.name)


class Failing(Hook):
    def on_step(self, state: State) -> None:
        raise KeyError("loss")

    def on_exception(self, state: State, error: BaseException) -> None:
        raise OSError("disk full")


class Tracker(Failing):
    best_effort = True


def test_hooks_run_by_priority_and_then_by_place() -> None:
    notes: list[str] = []
    plan = Plan(
        {
            "late": Noting(notes, priority=Priority.LOW),
            "second": Noting(notes),
            "third": Noting(notes),
            "first": Noting(notes, priority=31),
        }
    )
    plan.fire("on_step", State())
    assert notes == ["first", "second", "third", "late"]
    assert plan.names_by_event() == {"on_step": ["first", "second", "third", "late"]}


@pytest.mark.parametrize(
    ("rank", "local_rank", "expected"),
    [(0, 0, ["all", "master", "local"]), (2, 0, ["all", "local"]), (3, 1, ["all"])],
)
def test_rank_runs_only_its_hooks(rank: int, local_rank: int, expected: list[str]) -> None:
    hooks = {
        "all": Noting(),
        "master": Noting(ranks=Ranks.MASTER),
        "local": Noting(ranks=Ranks.LOCAL_MASTER),
    }
    assert list(Plan(hooks, rank, local_rank).hooks) == expected


def test_failure_names_hook_event_and_cause() -> None:
    with pytest.raises(
        HookError, match="hook 'broken' failed in on_step: KeyError: 'loss'"
    ) as caught:
        Plan({"broken": Failing()}).fire("on_step", State())
    assert (caught.value.hook, caught.value.event) == ("broken", "on_step")
    assert isinstance(caught.value.__cause__, KeyError)


def test_hook_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(HookError.from_error("ema", "on_update", ValueError("no"))))
    assert (error.hook, error.event) == ("ema", "on_update")
    assert str(error) == "hook 'ema' failed in on_update: ValueError: no"


def test_best_effort_failure_is_logged_and_the_next_hook_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[str] = []
    with caplog.at_level(logging.WARNING, "hookyard"):
        Plan({"tracker": Tracker(), "next": Noting(notes)}).fire("on_step", State())
    assert notes == ["next"]
    assert "hook 'tracker' failed in on_step (the run continues): KeyError: 'loss'" in caplog.text


def test_a_failure_in_on_exception_never_hides_the_first_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "hookyard"):
        Plan({"broken": Failing()}).fire("on_exception", State(), ValueError("the cause"))
    assert "disk full" in caplog.text


def test_costs_count_calls_since_the_last_drain() -> None:
    plan = Plan({"a": Noting(), "idle": Hook()})
    for _ in range(3):
        plan.fire("on_step", State())
    (row,) = plan.drain_costs()
    assert (row["hook"], row["event"], row["calls"]) == ("a", "on_step", 3)
    assert row["seconds"] > 0
    assert plan.drain_costs() == []


@dataclass
class Dear(Hook):
    """Takes so many microseconds of the host's time that a test counts."""

    takes: float
    passed: list[float]

    def on_step(self, state: State) -> None:
        self.passed[0] += self.takes * 1e-6


def test_only_expensive_calls_are_marked_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two marks are a device's second; to begin with, 200 calls count as ones of five
    microseconds."""
    passed = [0.0]
    marks = [0.0]
    monkeypatch.setattr("hooks.event_plan.perf_counter", lambda: passed[0])

    def mark() -> float:
        marks[0] += 1
        return marks[0]

    cheap = Dear(1, passed)
    dear = Dear(50, passed)
    plan = Plan({"cheap": cheap, "dear": dear}, mark_time=mark)
    for _ in range(300):
        plan.fire("on_step", State())
    # 1,000 + n < 5 n from n = 250 on.
    assert {row["hook"]: row["seconds"] for row in plan.drain_costs()} == {
        "cheap": pytest.approx(250 + 50e-6),
        "dear": 300,
    }
    cheap.takes = 10_000  # it waits now
    plan.fire("on_step", State())
    plan.fire("on_step", State())
    assert {row["hook"]: row["seconds"] for row in plan.drain_costs()} == {
        "cheap": pytest.approx(1 + 0.01),
        "dear": 2,
    }
    plan.stop_device_timing()
    plan.fire("on_step", State())
    assert {row["hook"]: row["seconds"] for row in plan.drain_costs()} == {
        "cheap": pytest.approx(0.01),
        "dear": pytest.approx(50e-6),
    }


@dataclass
class Paced(Hook):
    """Notes the iterations in which each event reached it."""

    every: int | Interval = 3
    interval: Interval = Interval(2, "steps")
    seen: dict[str, list[int]] = field(default_factory=dict)

    def _note(self, event: str, state: State, ahead: int = 1) -> None:
        self.seen.setdefault(event, []).append(state.phase_iteration + ahead)

    @at_interval("every")
    def on_forward(self, state: State) -> None:
        self._note("on_forward", state)

    @at_interval("interval")
    def on_gradients(self, state: State) -> None:
        self._note("on_gradients", state)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        self._note("on_step", state, ahead=0)


def _run(plan: Plan, iterations: int, phase: str, accumulate: int = 1) -> None:
    state = State(phase=phase)
    for index in range(1, iterations + 1):
        plan.fire("on_forward", state)
        state.stepped = phase == "train" and index % accumulate == 0
        if state.stepped:
            plan.fire("on_gradients", state)
            state.step += 1
        state.phase_iteration += 1
        plan.fire("on_step", state)


def test_interval_is_due_in_the_same_iterations_for_all_events() -> None:
    hook = Paced()
    always = Noting()
    _run(Plan({"paced": hook, "always": always}), 10, "train")
    assert hook.seen == {
        "on_forward": [3, 6, 9],
        "on_step": [3, 6, 9],
        "on_gradients": [2, 4, 6, 8, 10],
    }
    assert len(always.notes) == 10


@pytest.mark.parametrize("intervals", [(4, 6), (4, 6, Interval(3, "steps")), (5,), (4, 0), (2, 7)])
def test_each_of_several_intervals_is_due_at_its_multiples(
    intervals: tuple[int | Interval, ...],
) -> None:
    hooks = {str(interval): Paced(interval) for interval in intervals}
    _run(Plan(hooks), 30, "train", accumulate=2)
    for interval in intervals:
        # A step has two iterations.
        every = interval if isinstance(interval, int) else 2 * interval.count
        expected = [*range(every, 31, every)] if every else []
        assert hooks[str(interval)].seen.get("on_step", []) == expected


@pytest.mark.parametrize(
    ("intervals", "stride"), [((4, 6), 2), ((5,), 5), ((4, Interval(4, "steps")), 1)]
)
def test_stride_divides_every_iteration_with_a_call(
    intervals: tuple[int | Interval, ...], stride: int
) -> None:
    hooks: dict[str, Hook] = {str(interval): Paced(interval) for interval in intervals}
    assert Plan(hooks).strides["on_step"] == stride


def test_stride_follows_a_changed_interval() -> None:
    plan = Plan({"paced": Paced(4)})
    plan.set_field("paced", "every", 3)
    assert plan.strides["on_step"] == 3


def test_hooks_of_different_intervals_keep_their_order() -> None:
    notes: list[str] = []

    @dataclass
    class Late(Paced):
        priority: ClassVar[Priority | int] = Priority.LOW

        def _note(self, event: str, state: State, ahead: int = 1) -> None:
            notes.append(f"{self.name} {event} {state.phase_iteration}")

    plan = Plan({"late": Late(every=1), "always": Noting(notes), "every second": Late(every=2)})
    _run(plan, 2, "val")
    assert notes == [
        "late on_forward 0",
        "always",
        "late on_step 1",
        "late on_forward 1",
        "every second on_forward 1",
        "always",
        "late on_step 2",
        "every second on_step 2",
    ]


def test_only_events_of_an_iteration_have_a_pace() -> None:
    with pytest.raises(TypeError, match="on_report cannot have an interval; events that can"):

        class Wrong(Hook):
            interval = 1

            @at_interval("interval")
            def on_report(self, state: State, metrics: dict[str, Any]) -> None: ...


def test_parts_of_a_split_plan_call_the_hooks_of_one_side_each() -> None:
    notes: list[str] = []
    plan = Plan({name: Noting(notes) for name in ("first", "own", "last")})
    own, others = plan.split({"own"})
    own.fire("on_step", State())
    assert notes == ["own"]
    others.fire("on_step", State())
    assert notes == ["own", "first", "last"]
