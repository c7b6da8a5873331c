"""One JSON object a line: how training went."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar

from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority, Ranks
from hooks.logs.readings import readings
from hooks.state import State

FILE = "scalars.jsonl"


@dataclass
class JsonLines(Hook):
    """Writes training's numbers and each phase's metrics to `scalars.jsonl`, one JSON object a line.

    Runs on the master. A line of training has `phase`, `time` (UTC), `epoch`, `iteration`, `step`, `samples`, `loss`
    (the mean since the line before), `lr` and every other numeric column of the row; a line at the end of a phase
    has the phase's `metrics` instead. What is not finite is null, so each line is valid JSON, and each is flushed.
    A resumed run goes on behind the last line its checkpoint knew. Source: MMEngine LocalVisBackend, iMIX JSONLogger.
    """

    interval: Annotated[int, Ge(1)] = 10
    """Training iterations between two lines."""

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._losses: deque[float | Tensor] = deque(maxlen=self.interval)
        self._file: IO[bytes] | None = None
        self._lines = 0

    def on_start(self, state: State) -> None:
        self._file, self._lines = _open_after(state.artifacts / FILE, self._lines)

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        self._losses.append(state.row["loss"])
        if state.iteration % self.interval == 0:
            self._write(state, readings(state, self._losses))
            self._losses.clear()

    def on_phase_end(self, state: State) -> None:
        prefix = f"{state.phase}/"
        metrics = {name: value for name, value in state.metrics.items() if name.startswith(prefix)}
        self._write(state, {"metrics": {name: _finite(value) for name, value in metrics.items()}})
        self._losses.clear()

    def on_end(self, state: State) -> None:
        self._close()

    def on_exception(self, state: State, error: BaseException) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lines = state["lines"]

    def _write(self, state: State, values: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        epoch = state.epoch - state.epoch_completed
        where = {"epoch": epoch, "iteration": state.iteration, "step": state.step, "samples": state.samples}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"phase": state.phase, "time": now, **where, **{name: _finite(value) for name, value in values.items()}}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self._lines += 1

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_after(path: Path, lines: int) -> tuple[IO[bytes], int]:
    """Opens a file for appending behind its first `lines` lines; also returns how many of them there were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    file.seek(0)
    there = 0
    end = 0
    while there < lines and file.readline().endswith(b"\n"):
        there, end = there + 1, file.tell()
    file.truncate(end)
    return file, there
