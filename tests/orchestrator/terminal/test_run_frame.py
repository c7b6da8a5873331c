"""What a frame says, by its content: where it stands on the screen is looked at, not tested."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from orchestrator.stats.insight import Finding
from orchestrator.stats.insight.rank_status import RankStatus, Speed
from orchestrator.terminal.eta import RunProgress
from orchestrator.terminal.run_frame import MOST_FINDINGS, MOST_RANKS, percent, run_frame
from orchestrator.terminal.run_status import RankView, RunView

MIB = 2**20


def drawn(frame: RenderableType, width: int = 100) -> list[str]:
    """The lines of a frame, as a pipe gets them."""
    out = StringIO()
    Console(file=out, width=width).print(frame)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def rank(number: int, work_s: float = 0.04, wait_s: float = 0.01, slowest: bool = False, **fields: object) -> RankView:
    rank_status = RankStatus(work_s, wait_s, work_s - 0.04, "forward_s", slowest)
    return replace(RankView(number, f"node{number}", 200, 1.0, rank_status, 512 * MIB), **fields)


VIEW = RunView(
    name="digits",
    path="runs/digits",
    status="running",
    started="2026-01-01T00:00:00Z",
    ended=None,
    error=None,
    stopped=(),
    progress=RunProgress("train", 1, 200, 200, epochs=4, share=0.5, eta_s=150),
    speed=Speed(loss=0.25, step_s=0.05, samples_per_s=1280),
    reports=1,
    report={
        "epoch": 0,
        "train/loss": 0.5,
        "val/accuracy": 0.75,
        "train/samples_per_s": 1300.0,
        "val/peak_rss_bytes": 5,
        "memory/rss_bytes": 5,
    },
    attempts=1,
    began_at=None,
    row_age_s=1.0,
    ranks=(rank(0), rank(1, 0.06, 0.0, slowest=True)),
    findings=(),
)


def test_a_frame_says_how_far_how_fast_and_what_was_reported() -> None:
    lines = drawn(run_frame(VIEW))
    assert lines[0] == "runs/digits  running"
    assert lines[1].startswith("epoch 1 of 4  ")
    assert lines[1].endswith("50%  eta 2 min")
    assert lines[2] == "loss 0.25   1,280 samples/s   50 ms per iteration   newest row 1 s ago"
    assert lines[3] == "report 1, epoch 0:   val/accuracy 0.75   train/loss 0.5", "what it says of the model, val first"


def test_ranks_are_rows_with_the_slowest_marked() -> None:
    lines = drawn(run_frame(VIEW))
    head = next(number for number, line in enumerate(lines) if line.startswith("rank"))
    assert lines[head].split() == ["rank", "node", "own", "work", "waiting", "memory", "row", "age", "slowest"]
    assert lines[head + 2].split() == ["0", "node0", "40", "ms", "10", "ms", "512", "MiB", "1", "s"]
    assert lines[head + 3].split() == [
        "1",
        "node1",
        "60",
        "ms",
        "0",
        "ms",
        "512",
        "MiB",
        "1",
        "s",
        "+20",
        "ms",
        "forward_s",
    ]


def test_columns_that_nobody_has_are_left_out() -> None:
    bare = RankView(0, "here", 7)
    assert drawn(run_frame(replace(VIEW, ranks=(bare,))))[-3].split() == ["rank", "node"]
    on_gpu = replace(bare, peaks={"cuda_peak_allocated_bytes": 3 * 2**30})
    assert drawn(run_frame(replace(VIEW, ranks=(on_gpu,))))[-1].split() == ["0", "here", "3", "GiB"]


def test_of_many_ranks_those_with_the_most_work_are_shown() -> None:
    ranks = tuple(rank(number, 0.01 + number / 1000) for number in range(MOST_RANKS + 4))
    lines = drawn(run_frame(replace(VIEW, ranks=ranks)))
    shown = [int(line.split()[0]) for line in lines if " node" in line and "rank" not in line]
    assert shown == list(range(MOST_RANKS + 3, 3, -1))
    assert lines[-1] == "and 4 ranks with less work of their own"


def test_what_is_wrong_is_said() -> None:
    findings = tuple(Finding("memory", f"leak {number}") for number in range(MOST_FINDINGS + 2))
    lines = drawn(
        run_frame(
            replace(VIEW, status="failed", error="rank 1: out of memory", findings=findings, notice="no row for 3 min")
        )
    )
    assert lines[0] == "runs/digits  failed"
    assert lines[-4 - MOST_FINDINGS + 1 :] == [
        *(f"memory: leak {number}" for number in range(MOST_FINDINGS)),
        "and 2 more: hookyard doctor runs/digits",
        "rank 1: out of memory",
        "no row for 3 min",
    ]


def test_a_run_in_steps_and_one_that_was_begun_again() -> None:
    steps = replace(
        VIEW, progress=RunProgress("val", 0, 30, 30, steps=100, share=0.3), attempts=2, began_at="step-00000020"
    )
    lines = drawn(run_frame(steps))
    assert lines[1].startswith("epoch 0  step 30 of 100  val  ")
    assert "attempt 2, from step-00000020" in lines


def test_a_run_that_has_not_begun_has_a_frame() -> None:
    empty = replace(VIEW, progress=RunProgress(), speed=Speed(), report={}, reports=0, ranks=(), row_age_s=None)
    assert drawn(run_frame(empty))[0] == "runs/digits  running"


@pytest.mark.parametrize(("share", "text"), [(None, ""), (0.0, "0%"), (0.999, "99%"), (1.0, "100%")])
def test_all_is_done_only_when_it_is(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize("width", [80, 140])
def test_a_frame_fits_its_width(width: int) -> None:
    view = replace(
        VIEW,
        findings=(Finding("straggler", "rank 1 is slow " * 20),),
        ranks=(rank(0, node="a-node-with-a-long-name.cluster.local"), VIEW.ranks[1]),
    )
    assert max(map(len, drawn(run_frame(view), width))) <= width
