"""Traces read back: which iterations are in them, and that the profiler ends once, whatever
happens."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import profile

from hooks import Hook, State
from hooks.setup import Setup
from hooks.stats import profiler
from hooks.stats.profiler import Profiler
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Breaks, Points, experiment

pytestmark = pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
POINTS = Points(train=44, val=11)  # 6 iterations an epoch


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[profile]:
    """The profilers that were ended, once for each time."""
    ended: list[profile] = []
    stop = profile.stop
    monkeypatch.setattr(profile, "stop", lambda self: (ended.append(self), stop(self))[1])
    return ended


def _train(
    folder: Path,
    hook: Profiler,
    world: World | None = None,
    hooks: dict[str, Hook] | None = None,
    **fields: Any,
) -> Loop:
    loop = Loop(
        POINTS,
        experiment(**fields),
        {"profiler": hook, **(hooks or {})},
        RunContext(world=world or World(), artifacts=folder),
    )
    list(loop.run())
    return loop


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("traces/*"))


def _counts(path: Path, *names: str) -> list[int]:
    """How many events of each name a trace has."""
    with gzip.open(path) as file:
        events = [
            event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"
        ]
    return [events.count(name) for name in names]


def test_trace_has_the_iterations_of_its_window_and_their_spans(
    tmp_path: Path, stops: list[profile]
) -> None:
    _train(tmp_path, Profiler(skip_first=1, wait=1, warmup=1, active=3))
    assert _names(tmp_path) == [
        "rank=0-step=6-iteration=6.pt.trace.json.gz",
        "rank=0-step=6-iteration=6.txt",
    ]
    trace = tmp_path / "traces" / "rank=0-step=6-iteration=6.pt.trace.json.gz"
    assert _counts(trace, "data", "forward", "loss", "backward", "optimizer") == [3] * 5
    assert _counts(trace, "aten::addmm") == [2 * 3]  # two linear layers
    assert "aten::addmm" in trace.with_name("rank=0-step=6-iteration=6.txt").read_text()
    assert len(stops) == 1


@pytest.mark.parametrize(
    ("iteration", "window"),
    [(0, (12, 15)), (10, (12, 15)), (13, (13, 15)), (14, (14, 15)), (15, (17, 20)), (20, None)],
)
def test_resumed_run_continues_the_schedule(
    iteration: int, window: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: skip 10; then wait 2, warmup 1, active 2, twice."""
    hook = Profiler(skip_first=10, wait=2, warmup=1, active=2, repeat=2)
    state = State(phase="train", iteration=iteration)
    windows: list[tuple[str, int]] = []
    calls = {
        name: lambda name=name: windows.append((name, state.iteration))
        for name in ("start", "stop")
    }
    monkeypatch.setattr(
        profiler, "profile", lambda **options: SimpleNamespace(step=lambda: None, **calls)
    )
    hook.on_start(state)
    for done in range(iteration, 25):
        state.iteration = done
        hook.on_iteration_start(state)
        state.iteration = done + 1
        hook.on_step(state)
    assert windows[:2] == ([] if window is None else [("start", window[0]), ("stop", window[1])])


def test_two_profilers_of_one_rank_are_refused() -> None:
    first = Profiler()
    second = Profiler(skip_first=40)
    other = Profiler(profiled_ranks=(1,))
    setup = Setup(hooks={"profiler": first, "later": second, "other": other})
    assert "'later' traces the same ranks" in first.unsuitable(setup)
    assert "'profiler' traces the same ranks" in second.unsuitable(setup)
    assert not other.unsuitable(setup)


def test_failure_within_a_window_keeps_its_trace_and_stops_the_profiler_once(
    tmp_path: Path, stops: list[profile]
) -> None:
    """VISSL's hook ends its profiler twice."""
    with pytest.raises(Exception, match="broken on purpose"):
        _train(
            tmp_path,
            Profiler(skip_first=0, warmup=1, active=10),
            hooks={"breaks": Breaks(iteration=3)},
        )
    assert _names(tmp_path) == [
        "rank=0-step=2-iteration=2.pt.trace.json.gz",
        "rank=0-step=2-iteration=2.txt",
    ]
    assert _counts(tmp_path / "traces" / _names(tmp_path)[0], "forward", "optimizer") == [2, 2]
    assert len(stops) == 1
    assert not torch.autograd._profiler_enabled()


def test_outside_its_windows_there_is_no_profiler(tmp_path: Path) -> None:
    class Looks(Hook):
        def __init__(self) -> None:
            self.on: list[bool] = []

        def on_forward(self, state: State) -> None:
            if state.phase == "train":
                self.on.append(torch.autograd._profiler_enabled())

    looks = Looks()
    _train(tmp_path, Profiler(skip_first=2, warmup=1, active=2), hooks={"looks": looks})
    assert looks.on == [False] * 3 + [True] * 2 + [False] * 7  # warming up, torch only prepares


def test_shapes_and_memory_are_recorded_if_configured(tmp_path: Path) -> None:
    _train(
        tmp_path,
        Profiler(
            skip_first=0,
            warmup=0,
            active=1,
            record_shapes=True,
            profile_memory=True,
            with_flops=True,
        ),
    )
    with gzip.open(tmp_path / "traces" / _names(tmp_path)[0]) as file:
        events = json.load(file)["traceEvents"]
    products = [event["args"]["Input Dims"] for event in events if event["name"] == "aten::addmm"]
    assert products[0][:3] == [[8], [8, 5], [5, 8]]
    assert any(event["name"] == "[memory]" for event in events)
    assert "CPU Mem" in (tmp_path / "traces" / _names(tmp_path)[1]).read_text()


def _on_a_rank(rank: int, world_size: int, folder: str) -> None:
    for name, ranks in (("one", (0,)), ("all", (0, 1))):
        _train(
            Path(folder) / name,
            Profiler(skip_first=0, active=1, profiled_ranks=ranks),
            World(rank=rank, world_size=world_size),
        )


def test_each_rank_that_is_traced_has_files_of_its_own(tmp_path: Path) -> None:
    """MMEngine's and iMIX's ranks write into one file."""
    on_ranks(_on_a_rank, 2, str(tmp_path))
    assert [name.split(".")[0] for name in _names(tmp_path / "one")] == [
        "rank=0-step=2-iteration=2"
    ] * 2
    assert [name.split(".")[0] for name in _names(tmp_path / "all")] == [
        f"rank={r}-step=2-iteration=2" for r in (0, 0, 1, 1)
    ]
