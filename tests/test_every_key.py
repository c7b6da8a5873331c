"""No key is accepted and ignored: each is given another valid value, and there is another run, or a refusal."""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import BaseModel
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from experiments.losses.ibot import IBOTLoss
from hooks import HOOKS, Hook, HookError, State
from orchestrator import Task, run, sweep
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.experiment import Component, Experiment
from orchestrator.config.load import experiment_from_dict
from orchestrator.config.model import Model
from orchestrator.config.parameters import parameters
from orchestrator.config.resolve import resolve
from orchestrator.config.source import with_value
from orchestrator.config.sweep import Asha, Budget, Median, Plateau, Race, Stop, Sweep
from orchestrator.config.workers import Ddp, Workers
from orchestrator.engines.ray_environment import Resources
from orchestrator.errors import ConfigError, UsageError
from orchestrator.loop import torch_settings
from orchestrator.loop.loop import Loop
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder, list_runs
from orchestrator.records.sweep_folder import trial_folders
from orchestrator.storage import Storage
from orchestrator.sweeps import in_process as sweeps_in_process
from tests.hooks.self_supervised.test_ibot import batches, network
from tests.tasks import Points, PointSet, Rows, numbers

HERE = "tests.test_every_key"


# What a run leaves


class Ticks:
    """A clock in which a moment passes each time it is looked at, so that a run takes the same time each time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0**-10
        return self.now


@pytest.fixture(autouse=True)
def same_time(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """One clock for all that measures time in a run; what takes long and leaves nothing is left out."""
    ticks = Ticks()
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    for name, module in list(sys.modules.items()):
        if name.startswith(("hooks.", "orchestrator.loop", "orchestrator.stats.recorder", "orchestrator.sweeps")) and "background" not in name:
            for clock in ("perf_counter", "monotonic"):
                if hasattr(module, clock):
                    monkeypatch.setattr(module, clock, ticks)
    return ticks


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
        self.told.said.append((gc.isenabled(), torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), str(state.output.dtype) if isinstance(state.output, Tensor) else ""))


def left_by(written: Mapping[str, Any], folder: Path) -> str:
    """All that a run of an experiment in this process leaves: weights, rows, reports, lines, files, and how it ended.

    Raises ConfigError where it is refused.
    """
    experiment = experiment_from_dict(written)
    resolved, rows, told = resolve(experiment.source), Kept(), Told()
    store = CheckpointStore(Storage(folder / "checkpoints"), "run") if "checkpoint" in resolved.hooks else None
    left: dict[str, Any] = {}
    torch.manual_seed(99)
    ran: Counter[str] = Counter()
    WATCHED.clear()
    loop = Loop(
        resolved.task, resolved.experiment, {**resolved.hooks, "settings": Settings(told)},
        recorder=rows, store=store, artifacts=folder, display=told, config=experiment.model_dump(mode="json"), name="run",
    )  # fmt: skip
    for layer, module in loop.state.module.named_modules():
        module.register_forward_hook(lambda *_, layer=layer: ran.update([layer]))
    left["loader"] = {name: (data.length(), getattr(data.loader, "num_workers", None)) for name, data in loop.data.phases.items()}
    try:
        left["reports"] = [(_told(report.metrics), report.final) for report in loop.run()]
    except ConfigError:
        raise
    except (HookError, RuntimeError) as error:  # how a run fails is one of the things that it leaves
        left["error"] = f"{type(error).__name__}: {error}"
    left["weights"], left["rows"], left["calls"] = numbers(loop.state.module), [_told(row) for row in rows.rows], rows.calls
    left["strides"] = [parameter.stride() for parameter in loop.state.module.parameters()]
    left["said"], left["info"], left["ended"] = told.said, _told(loop.state.info), loop.stopping.reasons
    left["labels"] = store.index() if store else {}
    left["files"] = {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    left["ran"], left["fetched"] = ran, WATCHED.copy()
    left["files"] = {re.sub(r"tfevents\..*", "tfevents", name): content for name, content in left["files"].items()}
    return repr(left)


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names and values, without values that are the machine's."""
    return {name: True if re.search(r"bytes|percent", name) else _plain(value) for name, value in values.items()}


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
        return [(event.step, str(event.summary), bool(event.graph_def)) for event in EventFileLoader(str(path)).Load()]
    if path.suffix == ".gz":
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        return sorted({(event["name"].split("#")[0], *sorted(event.get("args", {}))) for event in events if event.get("cat") != "Trace"})
    if path.suffix == ".txt" and "traces" in path.parts:
        return len(path.read_text().splitlines())
    if path.suffix == ".json" and "checkpoints" not in path.parts:
        return path.read_text()
    if "export" in path.parts:
        return any("functional" in name for name in zipfile.ZipFile(path).namelist())  # which a script calls, and no trace
    return path.suffix


# Experiments

QUIET: dict[str, Any] = {"sampler_seed": None, "sync_buffers": None, "param_scheduler": None, "perf_stats": None, "memory_stats": None, "console": None, "checkpoint": None}
PLAIN: dict[str, Any] = {
    "name": "run", "task": f"{HERE}:Watched", "epochs": 2, "batch_size": 8, "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
}  # fmt: skip


WATCHED: Counter[str] = Counter()
"""How often samples were fetched, by phase."""


class WatchedSet(PointSet):
    """Counts what is fetched of it."""

    def __getitem__(self, index: int) -> Any:
        WATCHED["fetched"] += 1
        return super().__getitem__(index)


@dataclass
class Watched(Points):
    """Counts what is fetched."""

    def data(self) -> Any:
        return {phase: WatchedSet(len(dataset), dataset.noisy, seed) for seed, (phase, dataset) in enumerate(super().data().items())}


@dataclass
class Images(Points):
    """Points that go through a convolution."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3))


@dataclass
class Breaking(Points):
    """Losses that are no numbers, a spike among them, a gradient that is none, or memory that is not there."""

    how: str = "nan"
    step: int = 9
    times: int = 1

    def model(self) -> nn.Module:
        self._step = 0
        return super().model()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        loss = super().loss(output, batch)
        self._step += output.requires_grad
        if not output.requires_grad or not self.step <= self._step < self.step + self.times:
            return loss
        if self.how == "gradient":
            return loss + (output * 0).sum().sqrt()
        if self.how == "memory":
            raise torch.cuda.OutOfMemoryError("no memory, on purpose")
        return loss * {"nan": torch.nan, "spike": 1e3}[self.how]


@dataclass
class Masked(Task):
    """iBOT in miniature."""

    def model(self) -> nn.Module:
        return network()

    def data(self) -> Any:
        return {"train": [(view_a, view_b, local, mask_a, mask_b) for views, _, masks in batches(3) for view_a, view_b, local, mask_a, mask_b in zip(*views, *masks, strict=True)]}

    def collate(self, samples: list[Any]) -> Any:
        *views, mask_a, mask_b = [torch.stack(parts) for parts in zip(*samples, strict=True)]
        return views, torch.arange(len(samples)), [mask_a, mask_b]

    def batch_size(self, batch: Any) -> int:
        return len(batch[1])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0], batch[2])

    def loss(self, output: Any, batch: Any) -> Tensor:
        loss: Tensor = IBOTLoss()(output, batch[2])
        return loss


def labelled() -> dict[str, TensorDataset]:
    """Points and their classes, to probe features with."""
    return {phase: TensorDataset(points.points, points.labels) for phase, points in {"train": PointSet(24, False, 0), "val": PointSet(9, False, 1)}.items()}


def other_labelled() -> dict[str, TensorDataset]:
    return {**labelled(), "train": TensorDataset(torch.randn(24, 5, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3)}


def other_teacher() -> nn.Module:
    torch.manual_seed(6)
    return nn.Linear(5, 3)


# The walk over hooks


@dataclass
class Key:
    """Another value of a field, and what it matters beside."""

    value: Any
    hook: dict[str, Any] = field(default_factory=dict)
    """Other fields of the hook."""
    around: dict[str, Any] = field(default_factory=dict)
    """The experiment."""


def of(hook: Mapping[str, Any] | None = None, around: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Key]:
    """Fields with their other values, all beside the same."""
    hook, around = dict(hook or {}), dict(around or {})
    return {
        name: Key(value.value, {**hook, **value.hook}, {**around, **value.around}) if isinstance(value, Key) else Key(value, hook, around)
        for name, value in fields.items()
    }


def breaking(how: str, **fields: Any) -> dict[str, Any]:
    return {"task": f"{HERE}:Breaking", "task_args": {"how": how, **fields}}


MEASURED = {"hooks": {"perf_stats": True, "gradient_clip": {}}}
LOGGED = {"hooks": {"perf_stats": True}, "epochs": 3}
POWER = {"average": "power", "std": 0.1}
SLOWEST = {"slowest": {"column": "step_s", "method": "max", "window": "epoch"}}
STEPPED = {"scheduler": {"type": "StepLR", "step_size": 1, "gamma": 0.5}}
VIEWS = "tests.hooks.self_supervised.views:TwoViews"
CLOUDS = {"task": "tests.hooks.self_supervised.clouds:Clouds", "task_args": {"val": 8}, "epochs": 2}
DINO = {"task": VIEWS, "task_args": {"method": "dino"}, "epochs": 3}
SWAPPED = of(
    None, CLOUDS, prototypes=Key("trunk.0"), assigned_views=[1, 2], epsilon=0.5, iterations=1, queue_length=8, queue_begin=Key("3 steps", {"queue_length": 8})
)  # fmt: skip
CENTRED = of(
    None, None, encoder="", momentum=0.5, global_views=1, centre_momentum=0.5, temperature=0.2,
    warmup_temperature=Key(0.02, {"warmup_epochs": 2}), warmup_epochs=2,
)  # fmt: skip

WALK: dict[str, dict[str, Key]] = {
    "anomaly_detection": of(None, breaking("gradient"), check_nan=False),
    "early_stopping": of(
        {"monitor": "val/loss", "patience": 2}, {"epochs": 5},
        monitor=Key("val/accuracy"), mode="max", rule="greater", min_delta=10.0, patience=Key(1, {"mode": "max"}), stopping_threshold=5.0,
        check_finite=Key(False, {"monitor": "train/loss"}, breaking("nan")), strict=Key(False, {"monitor": "val/no_loss"}),
    ),
    "ema": of(
        None, {"task_args": {"batch_norm": True}},
        decay=0.5, average="stochastic", gamma=Key(1, {"average": "annealing"}), interval=3, begin=1, buffers="ema", evaluate="both", momentum=0.1,
        std=Key([0.2, 0.1], POWER), snapshots=Key("3 steps", POWER), keep_snapshots=Key(2, {**POWER, "snapshots": "1 step"}),
    ),
    "empty_cache": of(None, None, before_epoch=True, after_epoch=False, after_iter=True, interval=Key(2, {"after_iter": True})),
    "freeze_parameters": of({"patterns": ["0.*"]}, None, patterns=["4.*"], until="5 steps", match=Key("regex", {"patterns": ["0.*"]}, {"task": f"{HERE}:Numbered"})),
    "garbage_collection": of(None, None, interval=2),
    "gradient_clip": of(None, None, max_norm=0.01, norm_type=1.0, max_value=0.01),
    "loss_spike": of(
        {"threshold": 4.0, "window": 12, "warmup": 4}, breaking("spike", times=2), threshold=1e9, window=5, warmup=10, patience=0
    ),
    "nan_guard": of(None, breaking("nan", times=2), action="stop", patience=Key(0, {"action": "skip"}), interval=4, dumps=0),
    "output_mask": of(None, {"task_args": {"val": 3}}, target=2),
    "param_scheduler": of(
        None, STEPPED, every="1 step", monitor=Key(None, {"monitor": "val/loss"}, {"scheduler": {"type": "ReduceLROnPlateau"}}), record_momentum=True, record_weight_decay=True
    ),
    "precise_batch_norm": of({"num_samples": 16}, {"task_args": {"batch_norm": True, "noisy": True}}, num_samples=32, cache_samples=True),
    "time_limit": of({"limit": 3600}, None, limit=0.01),
    "activation_stats": of({"every": "2 steps"}, {"task": f"{HERE}:Images"}, every="3 steps", inputs=True, ignored=["Linear"], sample_feature_map=True),
    "device_stats": of(None, None, interval=3),
    "layer_memory": of({"every": "2 steps"}, None, every="3 steps"),
    "memory_snapshot": of(None, breaking("nan"), steps=[3], failures=Key("none", {}, {"task_args": {"how": "memory"}})),
    "memory_stats": of(None, None, every=3),
    "model_complexity": of(None, None, max_depth=0),
    "optimizer_stats": of({"every": "2 steps"}, None, every="3 steps"),
    "profiler": of(
        {"skip_first": 2, "active": 1}, None,
        skip_first=3, wait=1, warmup=2, active=2, repeat=2, profiled_ranks=[1], record_shapes=True, profile_memory=True, with_stack=True, with_flops=True,
        nvtx=True, stop_after=True,
    ),
    "row_stats": of({"report": ["loss/mean"]}, None, report=["loss/max"]),
    "throughput": of({"interval": 3, "window": 4}, {"hooks": {"perf_stats": True, "model_complexity": True}}, interval=4, window=2, peak_flops=1e9),
    "console": of({"interval": 3}, MEASURED, interval=2, window=2, columns=["data_wait_s"], statistics=SLOWEST),
    "json_lines": of({"interval": 3}, LOGGED, interval=2, window=2, statistics=SLOWEST),
    "output_csv": of(None, {"task_args": {"test": 9}}, id_key=1, target_key=None, scores=True, phases=["val"]),
    "progress_bar": of(None, None, interval=3),
    "tensorboard": of({"interval": 3}, LOGGED, interval=2, window=2, statistics=SLOWEST, axis="samples", histograms="2 steps", graph=True),
    "checkpoint": of(
        {"keep": 2}, {"epochs": 4},
        every="3 steps", keep=1, save_last=Key(False, {"every": "9 steps"}), best="val/loss", mode=Key("min", {"best": "val/accuracy"}), rule=Key("less", {"best": "val/accuracy"}),
        begin=2, publish=["model"], save_on_exception=Key(True, {}, breaking("gradient") | {"hooks": {"nan_guard": {}}}),
    ),
    "export": of({"format": "trace"}, {"hooks": {"ema": {"decay": 0.5}}}, format="script", every=1, weights="raw", dynamic_batch=False),
    "byol": of(None, {"task": VIEWS, "task_args": {"method": "byol"}}, encoder="encoder.backbone", momentum=0.5),
    "deepcluster": of({"clusters": [3, 3], "assigned_views": [0, 1]}, {**CLOUDS, "task_args": {"prototypes": 0}}, clusters=[3, 4], assigned_views=[1, 2], iterations=1),
    "dino": {name: Key(key.value, key.hook, DINO) for name, key in CENTRED.items()},
    "distillation": of({"teacher": "tests.hooks.self_supervised.test_distillation:big_teacher"}, {"task": "tests.hooks.self_supervised.test_distillation:Distilled"}, teacher=f"{HERE}:other_teacher", checkpoint="/no/such/file"),
    "feature_probe": of(
        {"data": f"{HERE}:labelled", "encoder": "0"}, {"epochs": 1}, data=f"{HERE}:other_labelled", encoder="", neighbours=1, temperature=100.0, labels_per_class=1, batch_size=7
    ),
    "ibot": {
        **{name: Key(key.value, key.hook, {"task": f"{HERE}:Masked", "epochs": 3}) for name, key in CENTRED.items()},
        **of(None, {"task": f"{HERE}:Masked", "epochs": 3}, patch_centre_momentum=0.1, patch_temperature=0.2, warmup_patch_temperature=Key(0.02, {"warmup_epochs": 2})),
    },
    "moco": of({"queue_length": 16}, {"task": VIEWS}, encoder="encoder.backbone", momentum=0.5, queue_length=24),
    "swav": SWAPPED,
    "swav_momentum": {**SWAPPED, **of(None, CLOUDS, momentum=0.5)},
}  # fmt: skip

CUDA, SERVICE = "needs a GPU", "needs a tracking service; tests/hooks/logs have what that is told"
NOT_SHOWN = {
    "ema.device": f"{CUDA}: the averages are kept elsewhere, with the same values",
    "memory_snapshot.max_entries": CUDA,
    "profiler.activities": CUDA,
    "tensorboard.flush_s": "is seconds until points are on disk",
    "export.tolerance": "decides when an export is wrong, which torch's is not",
    "checkpoint.background": "says when files are written, which then hold the same: tests/orchestrator/loop/test_checkpoint_writes.py",
    "checkpoint.out_dir": "is read by the run, not by the loop: tests/orchestrator/engines/test_in_process.py",
    **{f"mlflow.{name}": SERVICE for name in parameters(HOOKS["mlflow"])},
    **{f"wandb.{name}": SERVICE for name in parameters(HOOKS["wandb"])},
}
"""Keys that the walk does not show, each with the reason."""


@dataclass
class Numbered(Points):
    """A layer whose name is a pattern's in one way and another's in the other."""

    def model(self) -> nn.Module:
        model = super().model()
        model.add_module("0x", nn.Linear(3, 3))
        return model


def written(name: str, key: Key, **more: Any) -> dict[str, Any]:
    hooks = {**QUIET, **key.around.get("hooks", {}), name: {**key.hook, **more}}
    return {**PLAIN, **key.around, "hooks": hooks}


def acts(make: Callable[[], str], reference: str, path: str) -> bool:
    """Whether a key with another value makes something else, or is refused by its name."""
    try:
        return make() != reference
    except ConfigError as refusal:
        return path in str(refusal)


Left = Callable[[Mapping[str, Any]], str]


@pytest.fixture
def left(tmp_path: Path, same_time: Ticks) -> Left:
    """What a run leaves, each in a folder of its own."""
    folders = (tmp_path / str(number) for number in range(1000))

    def left(experiment: Mapping[str, Any]) -> str:
        same_time.now = 0.0
        return left_by(experiment, next(folders))

    return left


def test_every_field_of_every_hook_is_walked() -> None:
    known = {f"{name}.{field}" for name, cls in HOOKS.items() for field in parameters(cls)}
    walked = {f"{name}.{field}" for name, fields in WALK.items() for field in fields}
    assert walked | NOT_SHOWN.keys() == known
    assert not walked & NOT_SHOWN.keys()


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # anomaly_detection's, of the NaN it is given
@pytest.mark.parametrize("name", list(WALK))
def test_a_hook_s_field_makes_another_run_or_is_refused(name: str, left: Left) -> None:
    references: dict[str, str] = {}
    ignored = []
    for field_name, key in WALK[name].items():
        base = written(name, key)
        known = json.dumps(base, sort_keys=True)
        if known not in references:
            references[known] = left(base)
            if len(references) == 1:
                assert left(base) == references[known], "two runs of one experiment leave something different, so that nothing is shown"
        if not acts(partial(left, written(name, key, **{field_name: key.value})), references[known], field_name):
            ignored.append(field_name)
    assert not ignored


# The walk over an experiment

CLIPPED = {"hooks": {"gradient_clip": {"max_norm": 0.01}, "optimizer_stats": {"every": "2 steps"}}}
LISTED = {"hooks": {"param_scheduler": True}, "scheduler": [{"type": "LinearLR", "end": "5 steps"}, {"type": "CosineAnnealingLR"}]}
GROUPED = {"optimizer": {"type": "SGD", "lr": 0.1, "weight_decay": 0.1, "groups": [{"match": "*.bias", "lr_scale": 0.5}]}}
FP16 = {"precision": "fp16", "hooks": {"checkpoint": {"every": "1 step"}}}
GROWING = {**FP16, "scaler": {"growth_interval": 2}}
TURNS = {"d": {"type": "SGD", "lr": 0.1, "params": "critic.*"}, "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"}}
PLAYED = {"task": "tests.orchestrator.loop.test_turns:Gan", "hooks": {"param_scheduler": True}, "optimizer": {"type": "SGD", "lr": 0.1}, "optimizers": TURNS}
INIT = {"init": {"from": "first.pt"}}
ADAM, STEPS = {"type": "Adam", "lr": 0.1}, {"epochs": None, "steps": 5}
EXPERIMENT: dict[str, Key] = {
    "task": Key(f"{HERE}:Images"),
    "task_args": Key({"dropout": 0.5}),
    "epochs": Key(1),
    "steps": Key(6, around=STEPS),
    "epoch_steps": Key(3, around={"task": "tests.streams:Streams", "epoch_steps": 5}),
    "batch_size": Key(4),
    "optimizer": Key(ADAM),
    "optimizer.type": Key("RMSprop", around={"optimizer": ADAM}),
    "optimizer.lr": Key(0.2),
    "scheduler": Key({"type": "ExponentialLR", "gamma": 0.5}, around={"hooks": {"param_scheduler": True}}),
    "scheduler.gamma": Key(0.5, around={"hooks": {"param_scheduler": True}, "scheduler": {"type": "ExponentialLR", "gamma": 0.25}}),
    "scheduler.warmup": Key(1, around={"hooks": {"param_scheduler": True}, "scheduler": {"type": "CosineAnnealingLR"}}),
    "scheduler.warmup_factor": Key(0.5, around={"hooks": {"param_scheduler": True}, "scheduler": {"type": "CosineAnnealingLR", "warmup": 1}}),
    "scheduler.1.begin": Key(1, around=LISTED), "scheduler.0.end": Key("3 steps", around=LISTED), "scheduler.1.every": Key("2 steps", around=LISTED),
    "optimizer.groups": Key([{"match": "*.bias", "lr": 0.2}]),
    "optimizer.groups.0": Key("no_decay", around=GROUPED), "optimizer.groups.0.match": Key("*.weight", around=GROUPED),
    "optimizer.groups.0.lr_scale": Key(0.1, around=GROUPED), "optimizer.groups.0.layer_decay": Key(0.5, around=GROUPED),
    "optimizers": Key({"d": TURNS["d"], "g": {**TURNS["g"], "lr": 0.2}}, around=PLAYED),
    "optimizers.d.type": Key("Adam", around=PLAYED), "optimizers.g.lr": Key(0.3, around=PLAYED), "optimizers.g.params": Key("*", around=PLAYED),
    "optimizers.d.scheduler": Key({"type": "StepLR", "step_size": 1}, around=PLAYED),
    "optimizers.d.groups": Key([{"match": "*.bias", "lr_scale": 0.5}], around=PLAYED),
    "init": Key({"from": "first.pt"}),
    "init.from": Key("second.pt", around=INIT), "init.weights": Key("ema", around=INIT), "init.strict": Key(True, around=INIT),
    "init.rename": Key({"9.*": "4.*"}, around=INIT), "init.only": Key(["0.*"], around=INIT), "init.except": Key(["0.*"], around=INIT),
    "precision": Key("bf16"),
    "scaler.init_scale": Key(1e30, around=FP16), "scaler.growth_factor": Key(4.0, around=GROWING),
    "scaler.backoff_factor": Key(0.001, around={**FP16, "scaler": {"init_scale": 1e8}}), "scaler.growth_interval": Key(2, around=FP16),
    "channels_last": Key(True, around={"task": f"{HERE}:Images"}),
    "sync_batchnorm": Key(True, around={"task_args": {"batch_norm": True}}),
    "activation_checkpointing": Key("encoder", around={"task": VIEWS, "hooks": {"moco": {"queue_length": 16}}}),
    "compile": Key(True),
    "cuda_graph": Key(True), "cudnn_benchmark": Key(True), "deterministic": Key(True), "float32_matmul_precision": Key("high"),
    "accumulate": Key(2), "accumulate.auto": Key("auto"),
    "validate_every": Key("3 steps"),
    "seed": Key(1),
    "loader.num_workers": Key(1),
    "loader.eval_batch_size": Key(5),
    "loader.drop_last": Key(True),
    "loader.when_dry": Key("stop", around={"task": "tests.streams:Streams", "epoch_steps": 5}),
    "workers.strategy": Key("fsdp"), "workers.meta_device": Key(True),
    **{f"workers.ddp.{name}": Key(True) for name in Ddp.model_fields},
    "hooks": Key({**QUIET, "gradient_clip": {"max_norm": 0.01}}),
    "hooks.gradient_clip.priority": Key("LOWEST", around=CLIPPED),
    "hooks.gradient_clip.level": Key("LOWEST", around=CLIPPED),
    "hooks.activation_stats.budget": Key("50%", around={"hooks": {**QUIET, "activation_stats": {}}}),
    "hooks.ema.type": Key("gradient_clip", around={"hooks": {"ema": {}}}),
    "changes": Key([{"at": 1, "set": {"optimizer.lr": 0.5}}]),
    "changes.at": Key([{"at": "1 step", "set": {"optimizer.lr": 0.5}}], around={"changes": [{"at": 1, "set": {"optimizer.lr": 0.5}}]}),
    "changes.set": Key([{"at": 1, "set": {"optimizer.lr": 0.2}}], around={"changes": [{"at": 1, "set": {"optimizer.lr": 0.5}}]}),
}
RAY = "is asked of Ray: the test below"
EXPERIMENT_NOT_SHOWN = {
    **dict.fromkeys(("name", "tags", "notes"), "is what a run is found by: the test below"),
    "upload_interval_s": "is seconds between two uploads to an object store: tests/orchestrator/stats/test_rank_files.py",
    "environment": "is asked of a cluster: tests/orchestrator/engines/test_ray_environment.py",
    **dict.fromkeys(("hang.after", "hang.action"), "needs a rank that stands still: tests/orchestrator/engines/test_standstill_watch.py"),
    "max_failures": "needs a process that is lost: tests/ray/test_survive.py",
    "loader.pin_memory": CUDA, "workers.count": RAY, "workers.gpu": RAY, "workers.cpus": RAY,
    "workers.memory": RAY, "workers.accelerator": RAY, "workers.resources": RAY,
    "sweep": "is walked over below",
}  # fmt: skip


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Model) and inner is not Component:
            yield from keys_of(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_key_of_an_experiment_is_walked() -> None:
    assert set(keys_of(Experiment)) <= EXPERIMENT.keys() | EXPERIMENT_NOT_SHOWN.keys()
    assert not EXPERIMENT.keys() & EXPERIMENT_NOT_SHOWN.keys()


def test_a_key_of_an_experiment_makes_another_run_or_is_refused(left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_settings, "compile_in_place", lambda module: WATCHED.update(["compiled"]))
    monkeypatch.chdir(tmp_path)
    for seed, file in enumerate(("first.pt", "second.pt")):
        torch.manual_seed(seed)
        torch.save({part: {**Points().model().state_dict(), "9.weight": torch.rand(3)} for part in ("model", "ema")}, file)
    references: dict[str, str] = {}
    ignored = []
    for path, key in EXPERIMENT.items():
        base = {**PLAIN, **key.around, "hooks": {**QUIET, **key.around.get("hooks", {})}}
        known = json.dumps(base, sort_keys=True)
        references.setdefault(known, left(base))
        path = path.removesuffix(".auto")
        changed = {**base, "changes": key.value} if path.startswith("changes") else with_value(base, path, key.value)
        if not acts(partial(left, changed), references[known], path):
            ignored.append(path)
    assert not ignored


@pytest.mark.parametrize(("key", "value"), [("count", 2), ("count", [1, 2]), ("gpu", True), ("gpu", 0.25), ("cpus", 2), ("memory", "8 GiB"), ("accelerator", "H100"), ("resources", {"spot": 1})])
def test_what_is_asked_of_ray(key: str, value: Any) -> None:
    gpu = {"gpu": True} if key == "accelerator" else {}
    asked = [(Resources.asked_by(workers), workers.least, workers.most) for workers in (Workers(**gpu), Workers(**gpu, **{key: value}))]
    assert asked[0] != asked[1]


@pytest.mark.parametrize(("key", "value"), [("name", "other"), ("tags", ["late"]), ("notes", "the second")])
def test_what_a_run_is_found_by(key: str, value: Any, tmp_path: Path) -> None:
    first, second = ({**PLAIN, "hooks": QUIET, **more} for more in ({}, {"name": "second", key: value}))
    for written in (first, second):
        run(experiment_from_dict(written), storage=tmp_path, local=True)
    found = {folder.name: (one.tags, one.notes) for folder, one in list_runs(tmp_path)}
    assert found == {"run": ([], ""), second["name"]: (second.get("tags", []), second.get("notes", ""))}


# The walk over a sweep


class Reports:
    """An engine that trains nothing and reports what its experiment says."""

    def __init__(self, workers: Any, **more: Any) -> None:
        self.reports: Iterator[Report] = iter(())

    def begin(self, assignment: Any, resolved: Any) -> None:
        self.reports = self._make(RunFolder(assignment.location), resolved.experiment)

    def _make(self, folder: RunFolder, experiment: Experiment) -> Iterator[Report]:
        lr, epochs = experiment.optimizer.arguments["lr"], experiment.epochs or 0
        for number in range(epochs):
            loss = 1 + 0.01 * experiment.seed - lr * (1 + min(number, 1))
            metrics = {"attempt": 0, "epoch": number, "step": number + 1, "iteration": number + 1, "samples": 8 * (number + 1), "val/loss": loss, "val/other": -loss}
            folder.append_metrics(metrics)
            yield Report(metrics, final=number == epochs - 1)

    def next(self) -> Report | None:
        return next(self.reports, None)

    def drop(self, rider: int) -> None:
        self.reports = iter(())

    def end(self) -> None: ...


RATES = {"optimizer.lr": {"uniform": [0.01, 0.2]}}
GRID = {"search": "grid", "space": {"optimizer.lr": {"choice": [0.05, 0.2, 0.15, 0.01]}}, "trials": None}
PLATEAU = {"stop": {"plateau": {"patience": 2, "grace_period": 0}}}
ASHA = {**GRID, "scheduler": {"type": "asha"}}
MEDIAN = {**GRID, "space": {"optimizer.lr": {"choice": [0.05, 0.01, 0.15, 0.1]}}, "scheduler": {"type": "median", "min_samples_required": 1}}
SWEEP: dict[str, Key] = {
    "metric": Key("val/other"),
    "mode": Key("max"),
    "trials": Key(4),
    "repeats": Key(2),
    "search": Key("grid", {"space": {"optimizer.lr": {"choice": [0.1, 0.05]}}, "trials": None}),
    "points": Key([{"optimizer.lr": 0.15}]),
    "riders": Key(False),
    "seed": Key(1),
    "space": Key({"optimizer.lr": {"uniform": [0.1, 0.2]}}),
    "scheduler": Key("asha", GRID),
    "stop": Key({"max_reports": 2}),
    "stop.plateau": Key({"patience": 1}),
    "stop.target": Key(0.99),
    "stop.max_reports": Key(3),
    "stop.time": Key(0.001),
    "stop.plateau.patience": Key(1, PLATEAU),
    "stop.plateau.min_delta": Key(5.0, PLATEAU),
    "stop.plateau.grace_period": Key(6, PLATEAU),
    "budget": Key({"trials": 1}),
    "budget.trials": Key(1),
    "budget.samples": Key(60),
    "budget.time": Key(0.001),
    "scheduler.grace_period": Key(2, ASHA),
    "scheduler.reduction_factor": Key(4, ASHA),
    "scheduler.max_t": Key(2, ASHA),
    "scheduler.brackets": Key(3, {"scheduler": {"type": "asha"}, "trials": 6, "seed": 3}),
    "median.grace_period": Key(4, MEDIAN),
    "median.min_samples_required": Key(3, MEDIAN),
    "grid.seed": Key(1, GRID),
}
SIDE_BY_SIDE = "needs trials side by side: tests/ray"
SWEEP_NOT_SHOWN = {"race.level": "needs trials with noise: tests/orchestrator/sweeps/test_race.py", "max_concurrent": "is asked of Ray: tests/orchestrator/config/test_space.py", "engine": "needs Ray: tests/ray/test_engines.py"}
"""The schedulers `hyperband`, `pbt` and `pb2` too: they need trials side by side (tests/ray), and are refused in one process."""


def test_every_key_of_a_sweep_is_walked() -> None:
    known = {*keys_of(Sweep), *(f"stop.{name}" for name in keys_of(Stop)), *(f"budget.{name}" for name in keys_of(Budget))}
    known |= {f"stop.plateau.{name}" for name in keys_of(Plateau)} | {f"scheduler.{name}" for name in keys_of(Asha) if name != "type"}
    known |= {f"{kind}.{name}" for kind, keys in (("median", Median), ("race", Race)) for name in keys_of(keys) if name != "type"}
    assert known == SWEEP.keys() - {"grid.seed"} | SWEEP_NOT_SHOWN.keys()


def trials_of(settings: Mapping[str, Any], folder: Path) -> str:
    """What the trials of a sweep in this process were, and how each ended."""
    written = {key: value for key, value in settings.items() if value is not None}
    done = sweep(experiment_from_dict({**PLAIN, "epochs": 6, "hooks": QUIET, "sweep": written}), storage=folder, local=True)
    runs = [(one.metadata().status, one.metadata().values, one.metadata().stopped, len(one.reports())) for one in trial_folders(done.folder)]
    try:
        return repr((runs, done.best.name))
    except UsageError:  # where no trial has reported
        return repr(runs)


def test_a_key_of_a_sweep_makes_other_trials_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps_in_process, "InProcess", Reports)
    references: dict[str, str] = {}
    ignored = []
    for number, (path, key) in enumerate(SWEEP.items()):
        base = {"metric": "val/loss", "mode": "min", "trials": 2, "space": RATES, **key.hook}
        known = json.dumps(base, sort_keys=True)
        if known not in references:
            references[known] = trials_of(base, tmp_path / f"{number}")
        inside = path.replace("median.", "scheduler.").replace("grid.", "")
        changed = partial(trials_of, with_value(base, inside, key.value), tmp_path / f"{number}-changed")
        if not acts(changed, references[known], f"sweep.{inside}"):
            ignored.append(path)
    assert not ignored
