"""All results of a run, as text to compare."""

import gc
import gzip
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import Tensor

from hooks import Hook, HookError, State
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.every_key.tasks import WATCHED
from tests.tasks import Rows, numbers


class Kept(Rows):
    """Keeps rows, and which hook was called at which event how often."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, int]] = []

    def append_costs(self, rows: list[dict[str, Any]]) -> None:
        self.calls += [(row["hook"], row["event"], row["calls"]) for row in rows]


@dataclass
class Told:
    """A display, and the process's settings that hooks change while a run goes on."""

    said: list[Any] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.said.append(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        self.said.append((label, completed, total, text))


class Settings(Hook):
    """Notes what the process is set to."""

    def __init__(self, told: Told) -> None:
        self.told = told

    def on_loss(self, state: State) -> None:
        self.told.said.append(
            (
                gc.isenabled(),
                torch.is_anomaly_enabled(),
                torch.is_anomaly_check_nan_enabled(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_float32_matmul_precision(),
                str(state.output.dtype) if isinstance(state.output, Tensor) else "",
            )
        )


def describe_outcome(written: Mapping[str, Any], folder: Path) -> str:
    """Run an experiment in this process; return its weights, rows, reports, lines, files and
    outcome as text.

    Raises ConfigError for an invalid experiment.
    """
    experiment = make_experiment(written)
    resolved = resolve(experiment.source)
    rows = Kept()
    told = Told()
    store = None
    if "checkpoint" in resolved.hooks:
        store = CheckpointStore(Storage(folder / "checkpoints"), "run")
    left: dict[str, Any] = {}
    torch.manual_seed(99)
    ran: Counter[str] = Counter()
    WATCHED.clear()
    loop = Loop(
        resolved.task,
        resolved.experiment,
        {**resolved.hooks, "settings": Settings(told)},
        RunContext(
            recorder=rows,
            store=store,
            artifacts=folder,
            display=told,
            config=experiment.model_dump(mode="json"),
            name="run",
        ),
    )
    for layer, module in loop.state.module.named_modules():
        module.register_forward_hook(lambda *_, layer=layer: ran.update([layer]))
    left["loader"] = {
        name: (data.length(), getattr(data.loader, "num_workers", None))
        for name, data in loop.training.data.phases.items()
    }
    try:
        left["reports"] = [(_told(report.metrics), report.is_final) for report in loop.run()]
    except ConfigError:
        raise
    except (HookError, RuntimeError) as error:
        # How a run fails is one of the things that it leaves.
        left["error"] = f"{type(error).__name__}: {error}"
    left["weights"] = numbers(loop.state.module)
    left["rows"] = [_told(row) for row in rows.rows]
    left["calls"] = rows.calls
    left["strides"] = [parameter.stride() for parameter in loop.state.module.parameters()]
    left["said"] = told.said
    left["info"] = _told(loop.state.info)
    left["ended"] = loop.runs[0].decision.reasons
    left["labels"] = store.index.read() if store else {}
    left["ran"] = ran
    left["fetched"] = WATCHED.copy()
    left["files"] = {
        re.sub(r"tfevents\..*", "tfevents", str(path.relative_to(folder))): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return repr(left)


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names and values, without values that are the machine's."""
    return {
        name: True if re.search(r"bytes|percent", name) else _plain(value)
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return repr(value)


def _content(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pd.read_parquet(path).drop(columns=["output_bytes"], errors="ignore").to_csv()
    if path.suffix in (".jsonl", ".csv"):
        return re.sub(r'"time": "[^"]*"', "", path.read_text())
    if "tfevents" in path.name:
        return [
            (event.step, str(event.summary), bool(event.graph_def))
            for event in EventFileLoader(str(path)).Load()
        ]
    if path.suffix == ".gz":
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        return sorted(
            {
                (event["name"].split("#")[0], *sorted(event.get("args", {})))
                for event in events
                if event.get("cat") != "Trace"
            }
        )
    if path.suffix == ".txt" and "traces" in path.parts:
        return len(path.read_text().splitlines())
    if path.suffix == ".json" and "checkpoints" not in path.parts:
        return path.read_text()
    if "export" in path.parts:
        # A script calls it, and a trace does not.
        return any("functional" in name for name in zipfile.ZipFile(path).namelist())
    return path.suffix
