"""Stragglers in tables whose culprit is known: it is named, and its victims are not."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hooks.hook import WITHIN_ITERATION
from orchestrator.column_names import SPANS
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import WAIT, extract_gradient_syncs
from orchestrator.doctor.robust_statistics import Floats
from orchestrator.doctor.stragglers import find_stragglers
from orchestrator.loop.spans.timestamps import TIMESTAMPS
from tests.orchestrator.doctor.runs import costs, slower, training, unmeasured


def found(stats: pd.DataFrame, ledger: pd.DataFrame | None = None) -> list[Finding]:
    exchanges = extract_gradient_syncs(stats)
    assert exchanges is not None
    return find_stragglers(exchanges, ledger)


def named(findings: list[Finding]) -> list[tuple[Any, ...]]:
    return [
        (finding.numbers["rank"], finding.numbers["span"], finding.numbers["pattern"])
        for finding in findings
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 9])
def test_ranks_that_are_alike_get_no_finding(ranks: int) -> None:
    assert found(training(ranks)) == []
    assert found(unmeasured(training(ranks))) == []


@pytest.mark.parametrize("ranks", [2, 9])
@pytest.mark.parametrize(
    "span",
    ["data_wait_s", "to_device_s", "forward_s", "loss_s", "optimizer_s", "hooks_s", "other_s"],
)
def test_only_the_slow_rank_is_named(ranks: int, span: str) -> None:
    stats = training(ranks, change=slower(span, ranks - 1, 0.01))
    (finding,) = found(stats)
    assert named([finding]) == named(found(unmeasured(stats))) == [(ranks - 1, span, "chronic")]
    assert finding.numbers["node"] == f"node{(ranks - 1) // 2}"
    assert finding.numbers["lost_s"] == pytest.approx(0.01, rel=0.05)
    assert finding.weight == pytest.approx(0.01 / 0.11, rel=0.05)
    assert finding.numbers["others_wait_s"] == pytest.approx(0.01, rel=0.1)
    assert f"rank {ranks - 1} (node{(ranks - 1) // 2}) is slow in {span}: " in finding.sentence


def test_a_rank_that_becomes_slower_drifts() -> None:
    (finding,) = found(training(4, change=slower("forward_s", 2, np.linspace(0, 0.02, 200))))
    assert named([finding]) == [(2, "forward_s", "drifting")]
    assert finding.numbers["lost_s"] == pytest.approx(0.01, rel=0.1)
    # the last of 20 stretches is 19.5 to 0.5 twentieths of 20 ms further than the first
    assert finding.numbers["individual_score"] == pytest.approx(
        (100 + 0.5) / (100 + 19.5), rel=0.02
    )


def test_a_drift_is_in_the_span_that_has_become_slower() -> None:
    """Rank 2 is a little slow in another span all the time. The drift begins late: its median over
    the run is 0."""
    late = np.concatenate([np.zeros(120), np.linspace(0.005, 0.04, 80)])

    def change(own: dict[str, Floats]) -> None:
        slower("loss_s", 2, 0.002)(own)
        slower("forward_s", 2, late)(own)

    (finding,) = found(training(4, change=change))
    assert named([finding]) == [(2, "forward_s", "drifting")]


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize(
    "stalls", [{120: 3.0}, {120: 0.21, **dict.fromkeys(range(3, 200, 20), 0.2)}]
)
def test_stalls_have_their_number_cost_and_longest(ranks: int, stalls: dict[int, float]) -> None:
    (finding,) = found(training(ranks, change=slower("data_wait_s", 1, stalls)))
    assert named([finding]) == [(1, "data_wait_s", "stalls")]
    assert (finding.numbers["stalls"], finding.numbers["iteration"]) == (len(stalls), 121)
    assert finding.numbers["longest_s"] == pytest.approx(stalls[120], rel=0.01)
    assert finding.numbers["lost_s"] == pytest.approx(sum(stalls.values()) / 199, rel=0.01)


def test_micro_batches_of_a_step_count_together() -> None:
    """Ranks meet once in four iterations."""
    stats = training(2, iterations=400, change=slower("data_wait_s", 1, 0.01))
    stats["step"] = stats["iteration"] // 4
    exchanges = extract_gradient_syncs(stats)
    assert exchanges is not None
    assert exchanges.iterations[:3].tolist() == [8, 12, 16]
    assert exchanges.local["forward_s"][0] == pytest.approx([0.12, 0.12], rel=0.01)
    (finding,) = find_stragglers(exchanges)
    assert finding.numbers["lost_s"] == pytest.approx(0.04, rel=0.01)
    assert "per step more than the others" in finding.sentence


def test_late_slowdown_that_costs_little_is_not_reported() -> None:
    """In the last third of the run, 3 ms of 100 are 0.9% of it, and 30 ms are 9 %."""
    late = np.arange(200) >= 140
    assert found(training(2, change=slower("forward_s", 1, np.where(late, 0.003, 0)))) == []
    assert named(found(training(2, change=slower("forward_s", 1, np.where(late, 0.03, 0))))) == [
        (1, "forward_s", "drifting")
    ]


def test_stall_among_hiccups_of_all_ranks_is_not_reported() -> None:
    """Four iterations long, where two others had hiccups of up to two, and told where theirs were
    short."""

    def change(hiccup_s: float) -> Any:
        def add(own: dict[str, Any]) -> None:
            own["data_wait_s"][120, 1] += 0.4
            own["forward_s"][60, 0] += hiccup_s
            own["optimizer_s"][80, 2] += hiccup_s

        return add

    assert found(training(3, change=change(0.2))) == []
    assert named(found(training(3, change=change(0.05)))) == [(1, "data_wait_s", "stalls")]


def test_slowdown_of_all_ranks_is_not_reported() -> None:
    def stall(own: dict[str, Any]) -> None:
        for rank, place in enumerate((20, 55, 77, 140)):
            own["forward_s"][place, rank] += 0.5

    def slow_down(own: dict[str, Any]) -> None:
        own["data_wait_s"] += 0.1
        own["forward_s"][::20] += 0.5

    assert found(training(4, change=stall)) == found(training(3, change=slow_down)) == []
    # Libraries load in the first iterations.
    assert found(training(2, change=slower("forward_s", 1, {0: 9.0, 1: 2.0}))) == []


@pytest.mark.parametrize(("late", "waiting"), [("data_wait_s", "hooks_s"), ("hooks_s", "other_s")])
def test_rank_that_waits_in_another_span_is_not_blamed(late: str, waiting: str) -> None:
    """Rank 0 waits for rank 1 in a collective hook, or where the ranks agree whether to stop."""

    def change(own: dict[str, Any]) -> None:
        own[late][:, 1] += 0.03
        own[waiting][:, 0] += 0.03

    stats = training(2, change=change)
    stats["all_reduce_wait_s"] = 0.0
    assert named(found(stats)) == [(1, late, "chronic")]


def test_slow_backward_pass_is_found_if_the_wait_is_measured() -> None:
    """Without the measure nobody's spans differ, and nobody is blamed."""
    stats = training(3, change=slower("backward_s", 2, 0.02))
    assert named(found(stats)) == [(2, "backward_s", "chronic")]
    assert found(unmeasured(stats)) == []


def test_waiting_in_the_backward_pass_is_not_blamed() -> None:
    """As where they share out their parameters: nothing but a question now and then is in the span
    of waiting."""
    stats = unmeasured(training(3, change=slower("data_wait_s", 1, 0.02)))
    asked = np.where(stats["iteration"] % 50 == 0, 0.001, 0)
    assert named(found(stats.assign(all_reduce_wait_s=asked))) == [(1, "data_wait_s", "chronic")]


def test_the_hook_is_named_from_the_ledger() -> None:
    """The save costs rank 1 more, but is no part of an iteration; of what is, ema costs both ranks
    alike."""
    ledger = costs(
        (0, "ema", "on_update", 200, 5.0),
        (1, "ema", "on_update", 200, 5.1),
        (0, "plots", "on_step", 200, 0.1),
        (1, "plots", "on_step", 200, 2.1),
        (1, "(loop)", "save", 3, 50.0),
    )
    (finding,) = found(training(2, change=slower("hooks_s", 1, 0.01)), ledger)
    assert (finding.numbers["hook"], finding.numbers["event"]) == ("plots", "on_step")
    assert "hooks_s (hook plots at on_step)" in finding.sentence


def test_several_slow_ranks_have_each_their_own_numbers() -> None:
    """Beside what is reckoned for each rank by itself, from the table, in plain words."""

    def change(own: dict[str, Any]) -> None:
        own["forward_s"][:, 3] += 0.010
        own["data_wait_s"][:, 7] += 0.020
        own["hooks_s"][:, 12] += np.linspace(0, 0.06, 200)

    stats = training(24, change=change)
    findings = found(
        stats, costs(*((rank, "plots", "on_step", 200, 6.0 * (rank == 12)) for rank in range(24)))
    )
    assert sorted(named(findings)) == [
        (3, "forward_s", "chronic"),
        (7, "data_wait_s", "chronic"),
        (12, "hooks_s", "drifting"),
    ]
    spans = [span for span in SPANS if span in stats and span != WAIT]
    by_rank = {
        name: stats.pivot(index="iteration", columns="rank", values=name).iloc[1:]
        for name in (*spans, WAIT)
    }
    work = pd.concat([by_rank[span] for span in spans]).groupby("iteration").sum()
    for finding in findings:
        rank = finding.numbers["rank"]
        numbers = finding.numbers
        stretches = [np.median(part) for part in np.array_split(work[rank].to_numpy(), 20)]
        more = by_rank[numbers["span"]][rank] - by_rank[numbers["span"]].drop(columns=rank).median(
            axis=1
        )
        waited = by_rank[WAIT].drop(columns=rank).median(axis=1) - by_rank[WAIT][rank]
        assert numbers["lost_s"] == pytest.approx(
            np.mean([np.median(part) for part in np.array_split(more.to_numpy(), 20)])
        )
        assert numbers["relative_score"] == pytest.approx(work.median().min() / work[rank].median())
        assert numbers["individual_score"] == pytest.approx(min(stretches) / stretches[-1])
        assert numbers["slowest_share"] == pytest.approx((work.idxmax(axis=1) == rank).mean())
        assert numbers["others_wait_s"] == pytest.approx(waited.median())
        assert numbers.get("hook") == ("plots" if rank == 12 else None)


@pytest.mark.parametrize("ranks", [3, 16])
def test_long_tails_are_not_stragglers(ranks: int) -> None:
    """The median of a sum of such times is more than the sum of their medians, on every rank."""
    draw = np.random.default_rng(0)

    def change(own: dict[str, Any]) -> None:
        for seconds in own.values():
            seconds[:] = draw.gamma(2.0, 0.01, seconds.shape)

    assert found(training(ranks, 400, change)) == []


def test_one_rank_and_short_runs_give_no_finding() -> None:
    assert found(training(1, change=slower("forward_s", 0, 0.1))) == []
    assert found(training(2, iterations=10, change=slower("forward_s", 1, 0.1))) == []


def test_the_events_within_an_iteration_are_those_the_loop_charges_to_hooks() -> None:
    charged = [name for name, span in TIMESTAMPS.items() if span == "hooks_s"]
    assert charged == list(WITHIN_ITERATION)
