"""Training numbers and metrics as JSON lines."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, ClassVar

from hooks.hook import Cleanup
from hooks.interval import Interval, at_interval
from hooks.logs.shared.readings import get_learning_rates, make_current_row, select_phase_metrics
from hooks.logs.shared.window_logger import LookBack, WindowLogger
from hooks.state import State

FILE = "scalars.jsonl"


@dataclass
class JsonLines(Cleanup, WindowLogger):
    """Write training numbers and each phase's metrics to `scalars.jsonl`, one JSON object per line.

        json_lines: {every: 10 iterations}

    A line of training has `phase`, `time` (UTC), `epoch`, `iteration`, `step`, `samples` (of all
    ranks), `lr`, the means of `loss`, times and gradient norms since the last line, and the newest
    value of each other numeric column. Peaks of memory are those since the last line. At the end of
    a phase a line has the `metrics`. NaN and infinity are null. A resumed run continues after the
    last line before its checkpoint. Runs on the master. Source: MMEngine LocalVisBackend, iMIX JSONLogger.
    """

    every: LookBack = Interval(10, "iterations")
    """Training iterations between lines."""

    state_fields: ClassVar[tuple[str, ...]] = ("_lines",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._file: IO[bytes] | None = None
        self._lines = 0

    def on_start(self, state: State) -> None:
        self._file, self._lines = _open_after(state.artifacts / FILE, self._lines)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self._write_line(state, make_current_row(state))

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and self._windows.has_changed():
            self._write_line(state, {})
        metrics = {
            name: _replace_non_finite(value) for name, value in select_phase_metrics(state).items()
        }
        self._write(state, {"metrics": metrics})

    def _write_line(self, state: State, row: Mapping[str, Any]) -> None:
        self._write(state, {**get_learning_rates(state), **self._windows.summarize(row)})

    def _write(self, state: State, values: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        line = {
            "phase": state.phase,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "epoch": state.epoch_number - 1,
            "iteration": state.iteration,
            "step": state.step,
            "samples": state.world_samples,
        }
        line |= {name: _replace_non_finite(value) for name, value in values.items()}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self._lines += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _replace_non_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_after(path: Path, lines: int) -> tuple[IO[bytes], int]:
    """Open a file to append after its first `lines` lines; return it and the number of lines
    found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    file.seek(0)
    kept = 0
    end = 0
    while kept < lines and file.readline().endswith(b"\n"):
        kept += 1
        end = file.tell()
    file.truncate(end)
    return file, kept
