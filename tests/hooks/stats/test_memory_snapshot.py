"""What is in memory, against tensors and allocations of known size; CUDA's snapshots against a
stand-in for torch's."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import Plan, State
from hooks.stats.memory_snapshot import MemorySnapshot
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, experiment


def _text(folder: Path, name: str = "rank=0-step=0") -> str:
    return (folder / "memory" / f"{name}.txt").read_text()


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("memory/*"))


def _fail(folder: Path, error: BaseException, hook: MemorySnapshot | None = None) -> None:
    (hook or MemorySnapshot()).on_exception(State(artifacts=folder), error)


def test_tensors_are_counted_by_kind(tmp_path: Path) -> None:
    kept = [torch.zeros(317, 3, dtype=torch.float64) for _ in range(4)]
    views = [torch.zeros(911, dtype=torch.int16)]
    views.append(views[0].view(-1))
    _fail(tmp_path, ValueError())
    text = _text(tmp_path, "rank=0-step=0-ValueError")
    assert re.search(rf"\b{4 * 317 * 3 * 8:,} +4  Tensor float64 \[317, 3\] cpu", text)
    assert re.search(rf"\b{2 * 911 * 2:,} +2  Tensor int16 \[911\] cpu", text)
    assert len(kept) + len(views) == 6


def test_writes_after_the_configured_steps(tmp_path: Path) -> None:
    """Once each, also where a step has several micro-batches."""
    loop = Loop(
        Points(train=44, val=11),
        experiment(accumulate=2),
        {"memory": MemorySnapshot(steps=(2, 5))},
        RunContext(artifacts=tmp_path),
    )
    list(loop.run())
    assert _names(tmp_path) == ["rank=0-step=2.txt", "rank=0-step=5.txt"]


class _Cuda:
    """torch's recording of CUDA's allocations, as far as it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[dict[str, Any]] = []
        monkeypatch.setattr(
            torch.cuda.memory,
            "_record_memory_history",
            lambda **options: self.recorded.append(options),
        )
        monkeypatch.setattr(
            torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_text("a snapshot")
        )
        monkeypatch.setattr(torch.cuda, "memory_summary", lambda device: "the summary")


def test_on_cuda_history_is_recorded_while_the_run_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = _Cuda(monkeypatch)
    state = State(artifacts=tmp_path, device=torch.device("cuda"), rank=3)
    plan = Plan({"memory": MemorySnapshot(steps=(7,), max_entries=500)}, rank=3)
    plan.fire("on_start", state)
    assert cuda.recorded == [{"max_entries": 500, "stacks": "python"}]
    state.step = 7
    state.stepped = True
    plan.fire("on_step", state)
    plan.fire("on_end", state)
    assert _names(tmp_path) == ["rank=3-step=7.pickle", "rank=3-step=7.txt"]
    assert "the summary" in _text(tmp_path, "rank=3-step=7")
    assert cuda.recorded[1:] == [{"enabled": None}]
