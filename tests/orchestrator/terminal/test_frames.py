"""Frames of runs and sweeps, by the words that they hold."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from orchestrator.doctor import Finding
from orchestrator.doctor.rank_status import RankStatus
from orchestrator.terminal.frame_parts import format_percent, make_table
from orchestrator.terminal.frames import LiveFrame
from orchestrator.terminal.run_frame import MAX_FINDINGS, MAX_RANKS, draw_run_frame
from orchestrator.terminal.run_view import RankView, RunProgress, RunView, Speed
from orchestrator.terminal.sweep_frame import draw_sweep_frame, shorten_names
from orchestrator.terminal.sweep_view import SweepView, TrialView
from tests.orchestrator.runs.written import written_run
from tests.orchestrator.terminal.test_sweep_status import trial as written_trial
from tests.orchestrator.terminal.test_sweep_status import written_sweep

MIB = 2**20


def lines_of(frame: RenderableType, width: int = 160) -> list[str]:
    """Return the lines of a frame as a pipe gets them."""
    out = StringIO()
    Console(file=out, width=width).print(frame)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def rank(
    number: int, work_s: float = 0.04, wait_s: float = 0.01, slowest: bool = False, **fields: object
) -> RankView:
    timing = RankStatus(work_s, wait_s, work_s - 0.04, "forward_s", slowest)
    return replace(RankView(number, f"node{number}", 200, 1.0, timing, 512 * MIB), **fields)


RUN = RunView(
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
    resumed_from=None,
    row_age_s=1.0,
    ranks=(rank(0), rank(1, 0.06, 0.0, slowest=True)),
    findings=(),
)


def trial(
    number: int, status: str = "finished", best: float | None = None, **fields: Any
) -> TrialView:
    values = {
        "values": {"optimizer.lr": 0.1234567, "hooks.ema": None},
        "stopped": (),
        "error": None,
        "run": None,
    }
    times = {"started": "2026-01-01T00:00:00Z", "ended": None}
    return TrialView(
        name=f"trial-{number:04d}",
        status=status,
        best=best,
        last=best,
        **{**values, **times, **fields},
    )


TRIALS = (
    trial(3, "running", 0.5, run=RUN),
    trial(0, best=0.9),
    trial(1, "stopped", 0.7, stopped=("the scheduler ended the trial",)),
    trial(2, "failed", error="rank 1: out of memory\nand more"),
)
SWEEP = SweepView(
    name="sweep",
    path="runs/sweep",
    status="running",
    error=None,
    metric="val/accuracy",
    mode="max",
    total=6,
    counts={"running": 1, "finished": 1, "stopped": 1, "failed": 1},
    best="trial-0000",
    share=3.5 / 6,
    eta_s=240,
    trials=TRIALS,
)


def test_run_frame_has_progress_speed_report_and_ranks() -> None:
    lines = lines_of(draw_run_frame(RUN))
    assert lines[0] == "runs/digits  running"
    assert lines[1].startswith("epoch 2 of 4  ")
    assert lines[1].endswith("50%  eta 2 min")
    assert lines[2] == "loss 0.25   1,280 samples/s   50 ms per iteration   last row 1 s ago"
    assert lines[3] == "report 1, epoch 1:   val/accuracy 0.75   train/loss 0.5", (
        "metrics of the model, val first"
    )
    assert lines[4].split() == [
        "rank",
        "node",
        "own",
        "work",
        "waiting",
        "memory",
        "last",
        "row",
        "slowest",
    ]
    assert lines[6].split() == ["0", "node0", "40", "ms", "10", "ms", "512", "MiB", "1", "s", "ago"]
    assert lines[7].split()[2:6] == ["60", "ms", "0", "ms"]
    assert lines[7].endswith("+20 ms forward_s")


def test_empty_columns_are_left_out() -> None:
    bare = RankView(0, "here", 7)
    assert lines_of(draw_run_frame(replace(RUN, ranks=(bare,))))[-3].split() == ["rank", "node"]
    on_gpu = replace(bare, peaks={"cuda_peak_allocated_bytes": 3 * 2**30})
    assert lines_of(draw_run_frame(replace(RUN, ranks=(on_gpu,))))[-1].split() == [
        "0",
        "here",
        "3",
        "GiB",
    ]


def test_a_table_shows_text_in_brackets_and_between_colons() -> None:
    row = {"[dim]": "[bold]a:key:b[/]"}
    assert lines_of(make_table([row], left=["[dim]"]))[::2] == ["[dim]", "[bold]a:key:b[/]"]


def test_run_frame_shows_the_ranks_with_the_most_work() -> None:
    ranks = tuple(rank(number, 0.01 + number / 1000) for number in range(MAX_RANKS + 4))
    lines = lines_of(draw_run_frame(replace(RUN, ranks=ranks)))
    shown = [int(line.split()[0]) for line in lines if " node" in line and "rank" not in line]
    assert shown == list(range(MAX_RANKS + 3, 3, -1))
    assert lines[-1] == "and 4 ranks with less work of their own"


def test_run_frame_ends_with_findings_error_and_notice() -> None:
    findings = tuple(Finding("memory", f"leak {number}") for number in range(MAX_FINDINGS + 2))
    failed = replace(
        RUN,
        status="failed",
        error="rank 1: out of memory",
        findings=findings,
        notice="no row for 3 min",
    )
    lines = lines_of(draw_run_frame(failed))
    assert lines[0] == "runs/digits  failed"
    assert lines[-3 - MAX_FINDINGS :] == [
        *(f"memory: leak {number}" for number in range(MAX_FINDINGS)),
        "and 2 more: hookyard doctor runs/digits",
        "rank 1: out of memory",
        "no row for 3 min",
    ]


def test_run_frame_of_a_resumed_run_and_of_a_run_without_rows() -> None:
    progress = RunProgress("val", 0, 30, 30, steps=100, share=0.3)
    lines = lines_of(
        draw_run_frame(replace(RUN, progress=progress, attempts=2, resumed_from="step-00000020"))
    )
    assert lines[1].startswith("epoch 1  step 30 of 100  val  ")
    assert "attempt 1, resumed from step-00000020" in lines
    empty = replace(
        RUN, progress=RunProgress(), speed=Speed(), report={}, reports=0, ranks=(), row_age_s=None
    )
    assert lines_of(draw_run_frame(empty))[0] == "runs/digits  running"


@pytest.mark.parametrize(
    ("share", "text"), [(None, ""), (0.0, "0%"), (0.29, "29%"), (0.999, "99%"), (1.0, "100%")]
)
def test_100_percent_means_complete(share: float | None, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.parametrize("width", [80, 140])
def test_a_frame_fits_its_width(width: int) -> None:
    long_names = replace(
        RUN,
        findings=(Finding("straggler", "rank 1 is slow " * 20),),
        ranks=(rank(0, node="a-node-with-a-long-name.cluster.local"), RUN.ranks[1]),
    )
    for frame in (draw_run_frame(long_names), draw_sweep_frame(SWEEP, 24)):
        assert max(map(len, lines_of(frame, width))) <= width


def test_sweep_frame_has_counts_best_and_trials() -> None:
    lines = lines_of(draw_sweep_frame(SWEEP))
    assert lines[0] == "runs/sweep  running"
    assert lines[1].startswith("3 of 6 trials ended")
    assert lines[1].endswith("58%  eta 4 min")
    assert lines[2] == "1 running, 1 finished, 1 stopped, 1 failed, 2 waiting"
    assert lines[3] == "Best: val/accuracy 0.9 (trial-0000)"
    rows = {line.split()[0]: line for line in lines if line.startswith("trial-")}
    assert list(rows) == ["trial-0003", "trial-0000", "trial-0001", "trial-0002"]
    assert rows["trial-0003"].split()[:7] == [
        "trial-0003",
        "running",
        "50%",
        "2",
        "min",
        "0.5",
        "0.5",
    ]
    assert rows["trial-0003"].split()[7:] == [
        "lr=0.1235",
        "ema=null",
        "rank",
        "1",
        "+20",
        "ms",
        "forward_s",
    ]
    assert rows["trial-0001"].endswith("the scheduler ended the trial")
    assert rows["trial-0002"].endswith("rank 1: out of memory"), "the first line of the error"
    lost = replace(SWEEP, best=None, trials=(), status="lost", notice="the sweep is dead")
    assert lines_of(draw_sweep_frame(lost))[3:] == [
        "no best trial by val/accuracy yet",
        "the sweep is dead",
    ]


def test_sweep_frame_fits_the_terminal() -> None:
    many = replace(
        SWEEP,
        trials=(*TRIALS[:3], *(trial(number, best=0.1) for number in range(10, 30)), TRIALS[3]),
    )
    lines = lines_of(draw_sweep_frame(many, 20), 140)
    assert len(lines) <= 20
    assert sum(line.startswith("trial-") for line in lines) == 12
    assert lines[-1] == "and 12 more, 1 of them failed"
    assert sum(line.startswith("trial-") for line in lines_of(draw_sweep_frame(many), 140)) == 24
    error = "rank 1: " + "a long story " * 20
    for height, width in ((24, 80), (None, 80), (None, 50)):
        lines = lines_of(
            draw_sweep_frame(
                replace(SWEEP, trials=(*TRIALS[:3], trial(2, "failed", error=error))), height
            ),
            width,
        )
        rows = lines[
            next(number for number, line in enumerate(lines) if line.startswith("──")) + 1 :
        ]
        assert [line.split()[:2] for line in rows] == [[view.name, view.status] for view in TRIALS]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["optimizer.lr", "hooks.ema.decay"], ["lr", "decay"]),
        (["hooks.ema.decay", "hooks.slow.decay"], ["hooks.ema.decay", "hooks.slow.decay"]),
        (["epochs", "hooks.x.epochs"], ["epochs", "hooks.x.epochs"]),
    ],
)
def test_names_are_as_short_as_possible(paths: list[str], names: list[str]) -> None:
    assert shorten_names(paths) == dict(zip(paths, names, strict=True))


def test_live_frame_reads_files_and_survives_damage(tmp_path: Path) -> None:
    assert lines_of(LiveFrame(written_run(tmp_path))(24))[0] == f"{tmp_path}/points  running"
    sweep = written_sweep(tmp_path)
    written_trial(sweep, 0, 0.5)
    lines = lines_of(LiveFrame(sweep)(24))
    assert lines[1].startswith("0 of 8 trials ended")
    assert lines[-1].startswith("trial-0000")
    frame = LiveFrame(sweep)
    (tmp_path / "sweep/run.json").write_text('{"half')
    assert frame(24) == ""
