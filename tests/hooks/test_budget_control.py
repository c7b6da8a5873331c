"""Budgets: a hook's cost stays below its share of the time, whatever looking and a step cost, by a clock that only the
test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import pytest
from annotated_types import Ge, Le

from hooks import HOOKS, Budget, Hook, Plan, Ranks, Rhythm, State, budget_control, paced_by
from hooks import plan as plan_module
from hooks.budget_control import replaced_fields, steered_paces
from hooks.hook import WITHIN_ITERATION
from tests.told_time import ToldTime


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ToldTime:
    told = ToldTime()
    for module in (plan_module, budget_control):
        monkeypatch.setattr(module, "perf_counter", told)
    return told


@dataclass
class Looks(Hook):
    """Takes time in its own calls, and in the forward pass as module hooks do."""

    every: Rhythm = Rhythm(10, "steps")

    def __post_init__(self) -> None:
        self.time, self.own_s, self.within_s, self.at_the_end_s = ToldTime(), 0.0, 0.0, 0.0
        self.at: list[int] = []
        self.looking = False

    @paced_by("every")
    def on_batch(self, state: State) -> None:
        self.looking = True

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self.time.now += self.own_s
        self.at.append(state.step + 1)

    def on_phase_end(self, state: State) -> None:
        self.time.now += self.at_the_end_s


@dataclass
class Counts(Hook):
    """Looks at iterations of every phase."""

    interval: Annotated[int, Ge(1), Le(1000)] = 50
    observes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.time, self.own_s = ToldTime(), 0.0
        self.at: dict[str, list[int]] = {"train": [], "val": []}

    @paced_by("interval")
    def on_step(self, state: State) -> None:
        self.time.now += self.own_s
        self.at[state.phase].append(state.iterations_before + state.phase_iteration)


@dataclass
class Draws(Hook):
    """Is cheap at one pace, and dear at a slower one."""

    interval: int = 50
    histograms: Rhythm = Rhythm(500, "steps")

    def __post_init__(self) -> None:
        self.time, self.dear_s = ToldTime(), 0.0
        self.took: list[tuple[float, float]] = []

    @paced_by("interval")
    def on_step(self, state: State) -> None:
        self.take(0.0003)

    @paced_by("histograms")
    def on_update(self, state: State) -> None:
        self.take(self.dear_s)

    def take(self, seconds: float) -> None:
        self.time.now += seconds
        self.took.append((self.time.now, seconds))

    def most_owed_s(self, share: float) -> float:
        """The most by which looks had taken more than the share of any stretch of time: the level of a leaky bucket."""
        owed = most = before = 0.0
        for now, seconds in self.took:
            owed = max(0.0, owed - share * (now - before)) + seconds
            most, before = max(most, owed), now
        return most


@dataclass
class OnMaster(Looks):
    ranks: ClassVar[Ranks] = Ranks.MASTER


def with_budget(hook: Any, time: ToldTime, budget: str = "1%", **seconds: float) -> Any:
    hook.budget, hook.time = Budget.parse(budget), time
    for name, value in seconds.items():
        setattr(hook, name, value)
    return hook


class Drive:
    """Fires the events of training as the loop does, and counts what of the time is the hooks'."""

    def __init__(self, plan: Plan, time: ToldTime, step_s: float, accumulate: int = 1) -> None:
        self.plan, self.time, self.step_s = plan, time, step_s
        self.state = State(accumulate=accumulate)
        self.settle: Callable[[], None] = lambda: plan.budgets.settle(plan.budgets.wanted())
        self.rows: list[dict[str, Any]] = []

    def train(self, steps: int, phase: str = "train") -> float:
        """A phase of so many steps; returns the hooks' share of its time."""
        state, began, hooks_s = self.state, self.time.now, 0.0
        state.phase, state.stepped, state.phase_iteration, state.iterations_before = (
            phase,
            False,
            0,
            state.iteration if phase == "train" else 0,
        )
        self.plan.fire("on_phase_start", state)
        for number in range(steps * state.accumulate):
            state.row = {}
            last = phase == "train" and (number + 1) % state.accumulate == 0
            before = self.time.now
            for event in WITHIN_ITERATION[:-1]:
                self.plan.fire(event, state)
                for hook in self.plan.hooks.values() if event == "on_batch" else ():
                    self.time.now += getattr(hook, "within_s", 0.0) * getattr(hook, "looking", False)
                    vars(hook)["looking"] = False
            state.stepped = last
            state.phase_iteration += 1
            state.iteration += phase == "train"
            state.step += last
            self.plan.fire("on_step", state)
            hooks_s += self.time.now - before
            self.time.now += self.step_s / state.accumulate
            self.rows.append(state.row)
            if self.plan.budgets.are_due:
                self.settle()
        before = self.time.now
        self.plan.fire("on_phase_end", state)
        return (hooks_s + self.time.now - before) / (self.time.now - began)


@pytest.mark.parametrize(
    ("share", "look", "every"),
    [
        (0.01, {"own_s": 0.004}, 64),
        (0.05, {"own_s": 0.004}, 16),
        (0.01, {"within_s": 0.012}, 256),
        (0.05, {"within_s": 0.004, "own_s": 0.001}, 16),
        (0.01, {"own_s": 0.001, "at_the_end_s": 0.02}, None),
        (0.01, {"own_s": 1e-7}, 2),
    ],
    ids=str,
)
def test_the_cost_stays_below_the_ceiling_from_the_beginning_and_after_a_change_of_load(
    time: ToldTime, share: float, look: Mapping[str, float], every: int | None
) -> None:
    """Of steps of 10 ms, whether it is the hook's calls, module hooks or the ends of phases that take time."""
    hook = with_budget(Looks(), time, f"{100 * share}%", **look)
    drive = Drive(Plan({"looks": hook}), time, 0.01)
    assert max(drive.train(400) for _ in range(4)) <= 1.2 * share
    assert max(drive.train(600) for _ in range(3)) <= share
    assert every in (None, hook.every.count)
    # Looking as dear, and steps at a fifth; then looking five times as dear: seen at its first look, which those after
    # it pay for.
    drive.step_s = 0.002
    drive.train(400)
    assert drive.train(5000) <= share
    hook.own_s, hook.within_s = 5 * hook.own_s, 5 * hook.within_s
    drive.train(5000)
    assert drive.train(5000) <= share


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize("steps", [1000, 1010, 1100])
def test_a_look_that_is_dear_is_paid_for_before_the_next_of_its_kind_also_as_steps_become_shorter(
    time: ToldTime, share: float, steps: int
) -> None:
    """However many cheap ones there are in between: no stretch of time has more looks than its share pays for, but for
    one."""
    hook = with_budget(Draws(), time, f"{100 * share}%", dear_s=0.04)
    drive = Drive(Plan({"draws": hook}), time, 0.009)
    drive.train(steps)
    drive.step_s = 0.003
    drive.train(10_000)
    dear = [now for now, seconds in hook.took if seconds == 0.04]
    assert len(dear) > 3
    assert min(later - earlier for earlier, later in pairwise(dear)) >= 0.04 / share
    assert hook.most_owed_s(share) <= 1.1 * 0.04


def test_the_row_of_a_look_says_the_pace_in_force(time: ToldTime) -> None:
    hook = with_budget(Looks(), time, own_s=0.001)
    drive = Drive(Plan({"looks": hook}), time, 0.01)
    drive.train(2000)
    said = {step: row["looks_every"] for step, row in enumerate(drive.rows, 1) if "looks_every" in row}
    assert [*said] == hook.at
    assert all(step % every == 0 for step, every in said.items())
    # 1 ms in 10 ms steps: 11.1 steps at nine tenths of 1 %
    assert [*said.values()][-1] == 16
    assert hook.every == Rhythm(16, "steps")


def test_evaluation_has_a_pace_of_its_own_by_what_its_iterations_take(time: ToldTime) -> None:
    hook = with_budget(Counts(), time, "5%", own_s=0.001)
    drive = Drive(Plan({"counts": hook}), time, 0.001)
    assert drive.train(100, "val") == 0  # nothing is known of it yet
    shares = []
    for _ in range(8):
        drive.step_s = 0.001
        drive.train(4000)
        drive.step_s = 0.0002
        shares.append(drive.train(4000, "val"))
    assert max(shares[1:]) <= 0.05
    rows = [row["counts_every"] for row in drive.rows if "counts_every" in row]
    assert {rows[-1], hook.interval} == {128, 32}
    # what its field allows is the most, whatever the budget
    rare = with_budget(Counts(), time, "0.01%", own_s=1.0)
    Drive(Plan({"counts": rare}), time, 0.001).train(3000)
    assert rare.interval == 512


def test_iterations_are_counted_as_the_pace_does_where_several_make_a_step(time: ToldTime) -> None:
    counts, looks = with_budget(Counts(), time, own_s=0.0005), with_budget(Looks(), time, own_s=0.0005)
    for hook in (counts, looks):
        drive = Drive(Plan({"hook": hook}), time, 0.02, accumulate=4)
        drive.train(1500)
        assert 0.003 <= drive.train(1500) <= 0.01
    # of a step of 20 ms, 0.5 ms in one of its four iterations, and in each of them
    assert (counts.interval, looks.every) == (16, Rhythm(16, "steps"))


def test_hooks_with_budgets_never_look_in_the_same_step(time: ToldTime) -> None:
    hooks = {f"hook{number}": with_budget(Looks(), time, "50%", own_s=1e-6, within_s=1e-6) for number in range(3)}
    Drive(Plan(hooks), time, 0.01).train(2000)
    steps = [step for hook in hooks.values() for step in hook.at]
    assert len(steps) == len(set(steps)) > 1000
    assert {hook.every for hook in hooks.values()} == {Rhythm(4, "steps")}  # in every fourth none looks


def test_all_ranks_have_the_pace_that_the_dearest_needs(time: ToldTime) -> None:
    """Two ranks of which one pays ten times as much, and a hook that the master runs alone."""

    plans = [
        Plan(
            {"all": with_budget(Looks(), time, own_s=cost), "master": with_budget(OnMaster(), time, own_s=0.002)}, rank
        )
        for rank, cost in enumerate((0.001, 0.01))
    ]
    drives = [Drive(plan, time, 0.01) for plan in plans]

    def agree() -> None:
        wanted = [plan.budgets.wanted() for plan in plans]
        for plan in plans:
            plan.budgets.settle([max(each) for each in zip(*wanted, strict=True)])

    for drive in drives:
        drive.settle = lambda: None
    for _ in range(100):
        for drive in drives:
            drive.train(16)
        agree()
        assert plans[0].budgets.state_dict() == plans[1].budgets.state_dict()
    assert plans[0].budgets.state_dict() == {"all": [128, 0], "master": [32, 0]}
    assert plans[0].hooks["all"].at == plans[1].hooks["all"].at


def test_it_goes_on_at_the_pace_of_a_checkpoint_until_looking_is_measured(time: ToldTime) -> None:
    hook = with_budget(Looks(), time, own_s=0.001)
    drive = Drive(Plan({"looks": hook}), time, 0.01)
    drive.plan.budgets.load_state_dict({"looks": [64, 0], "gone": [2, 2]})
    drive.train(100)
    assert hook.at == [64, 80, 96]


def test_paces_of_a_hook_with_several_keep_their_proportion(time: ToldTime) -> None:
    hook = HOOKS["tensorboard"](histograms=Rhythm(500, "steps"))  # type: ignore[call-arg]
    hook.budget = Budget.parse("1%")
    assert steered_paces(hook) == {"interval": 50, "histograms": Rhythm(500, "steps")}
    plan = Plan({"tensorboard": hook})
    plan.budgets.settle([3.0, 0.0])
    assert (hook.interval, hook.histograms) == (4, Rhythm(64, "steps"))  # type: ignore[attr-defined]


def test_the_hooks_that_ship_and_can_have_a_budget() -> None:
    assert {name for name, cls in HOOKS.items() if replaced_fields(cls)} == {
        "activation_stats",
        "console",
        "device_stats",
        "empty_cache",
        "garbage_collection",
        "json_lines",
        "layer_memory",
        "memory_stats",
        "mlflow",
        "optimizer_stats",
        "progress_bar",
        "tensorboard",
        "throughput",
        "wandb",
    }


@pytest.mark.parametrize(("written", "share"), [("1%", 0.01), (" 0.25 % ", 0.0025), ("100%", 1.0)])
def test_a_budget_is_a_percentage(written: str, share: float) -> None:
    assert Budget.parse(written).share == pytest.approx(share)
    assert Budget.parse(str(Budget.parse(written))) == Budget.parse(written)


@pytest.mark.parametrize(
    "wrong", ["0%", "0.0%", "100.1%", "1000%", "-1%", "1", "%", "1e-2%", "nan%", 1, 0.01, True, None, ["1%"]]
)
def test_what_is_no_share_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="above 0% and at most 100%, such as '1%', got"):
        Budget.parse(wrong)
