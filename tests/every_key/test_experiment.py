"""Each key of an experiment changes the run, or is refused."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator import run
from orchestrator.disk.listing import list_metadata
from orchestrator.engines.resources import Resources
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Ddp, Workers
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.loop.model import model_settings
from tests.every_key.conftest import Left
from tests.every_key.tasks import HERE, PLAIN, QUIET, VIEWS, WATCHED
from tests.every_key.walk import CUDA, Key, acts, keys_of
from tests.tasks import Points

CLIPPED = {"hooks": {"gradient_clip": {"max_norm": 0.01}, "optimizer_stats": {"every": "2 steps"}}}
LISTED = {
    "hooks": {"param_scheduler": True},
    "scheduler": [{"type": "LinearLR", "end": "5 steps"}, {"type": "CosineAnnealingLR"}],
}
GROUPED = {
    "optimizer": {
        "type": "SGD",
        "lr": 0.1,
        "weight_decay": 0.1,
        "groups": [{"match": "*.bias", "lr_scale": 0.5}],
    }
}
FP16 = {"precision": "fp16", "hooks": {"checkpoint": {"every": "1 step"}}}
GROWING = {**FP16, "scaler": {"growth_interval": 2}}
TURNS = {
    "d": {"type": "SGD", "lr": 0.1, "params": "critic.*"},
    "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"},
}
PLAYED = {
    "task": "tests.orchestrator.loop.step.test_turns:Gan",
    "hooks": {"param_scheduler": True},
    "optimizer": {"type": "SGD", "lr": 0.1},
    "optimizers": TURNS,
}
INIT = {"init": {"from": "first.pt"}}
ADAM = {"type": "Adam", "lr": 0.1}
STEPS = {"epochs": None, "steps": 5}
EXPERIMENT: dict[str, Key] = {
    "task": Key(f"{HERE}:Images"),
    "task_args": Key({"dropout": 0.5}),
    "epochs": Key(1),
    "steps": Key(6, around=STEPS),
    "epoch_steps": Key(3, around={"task": "tests.iterable_tasks:IterablePoints", "epoch_steps": 5}),
    "batch_size": Key(4),
    "optimizer": Key(ADAM),
    "optimizer.type": Key("RMSprop", around={"optimizer": ADAM}),
    "optimizer.lr": Key(0.2),
    "scheduler": Key(
        {"type": "ExponentialLR", "gamma": 0.5}, around={"hooks": {"param_scheduler": True}}
    ),
    "scheduler.gamma": Key(
        0.5,
        around={
            "hooks": {"param_scheduler": True},
            "scheduler": {"type": "ExponentialLR", "gamma": 0.25},
        },
    ),
    "scheduler.warmup": Key(
        1, around={"hooks": {"param_scheduler": True}, "scheduler": {"type": "CosineAnnealingLR"}}
    ),
    "scheduler.warmup_factor": Key(
        0.5,
        around={
            "hooks": {"param_scheduler": True},
            "scheduler": {"type": "CosineAnnealingLR", "warmup": 1},
        },
    ),
    "scheduler.1.begin": Key(1, around=LISTED),
    "scheduler.0.end": Key("3 steps", around=LISTED),
    "scheduler.1.every": Key("2 steps", around=LISTED),
    "optimizer.groups": Key([{"match": "*.bias", "lr": 0.2}]),
    "optimizer.groups.0": Key("no_decay", around=GROUPED),
    "optimizer.groups.0.match": Key("*.weight", around=GROUPED),
    "optimizer.groups.0.lr_scale": Key(0.1, around=GROUPED),
    "optimizer.groups.0.layer_decay": Key(0.5, around=GROUPED),
    "optimizers": Key({"d": TURNS["d"], "g": {**TURNS["g"], "lr": 0.2}}, around=PLAYED),
    "optimizers.d.type": Key("Adam", around=PLAYED),
    "optimizers.g.lr": Key(0.3, around=PLAYED),
    "optimizers.g.params": Key("*", around=PLAYED),
    "optimizers.d.scheduler": Key({"type": "StepLR", "step_size": 1}, around=PLAYED),
    "optimizers.d.groups": Key([{"match": "*.bias", "lr_scale": 0.5}], around=PLAYED),
    "init": Key({"from": "first.pt"}),
    "init.from": Key("second.pt", around=INIT),
    "init.weights": Key("ema", around=INIT),
    "init.strict": Key(True, around=INIT),
    "init.rename": Key({"9.*": "4.*"}, around=INIT),
    "init.only": Key(["0.*"], around=INIT),
    "init.except": Key(["0.*"], around=INIT),
    "precision": Key("bf16"),
    "scaler.init_scale": Key(1e30, around=FP16),
    "scaler.growth_factor": Key(4.0, around=GROWING),
    "scaler.backoff_factor": Key(0.001, around={**FP16, "scaler": {"init_scale": 1e8}}),
    "scaler.growth_interval": Key(2, around=FP16),
    "channels_last": Key(True, around={"task": f"{HERE}:Images"}),
    "sync_batchnorm": Key(True, around={"task_args": {"batch_norm": True}}),
    "activation_checkpointing": Key(
        "encoder", around={"task": VIEWS, "hooks": {"moco": {"queue_length": 16}}}
    ),
    "compile": Key(True),
    "compile.mode": Key("reduce-overhead", around={"compile": {}}),
    "cudnn_benchmark": Key(True),
    "deterministic": Key(True),
    "float32_matmul_precision": Key("high"),
    "accumulate": Key(2),
    "accumulate.auto": Key("auto"),
    "validate_every": Key("3 steps"),
    "seed": Key(1),
    "loader.num_workers": Key(1),
    "loader.eval_batch_size": Key(5),
    "loader.drop_last": Key(True),
    "loader.on_exhausted": Key(
        "stop", around={"task": "tests.iterable_tasks:IterablePoints", "epoch_steps": 5}
    ),
    "workers.strategy": Key("fsdp"),
    "workers.meta_device": Key(True),
    **{f"workers.ddp.{name}": Key(True) for name in Ddp.model_fields},
    "hooks": Key({**QUIET, "gradient_clip": {"max_norm": 0.01}}),
    "hooks.gradient_clip.priority": Key("LOWEST", around=CLIPPED),
    "hooks.ema.type": Key("gradient_clip", around={"hooks": {"ema": {}}}),
    "changes": Key([{"at": 1, "set": {"optimizer.lr": 0.5}}]),
    "changes.at": Key(
        [{"at": "1 step", "set": {"optimizer.lr": 0.5}}],
        around={"changes": [{"at": 1, "set": {"optimizer.lr": 0.5}}]},
    ),
    "changes.set": Key(
        [{"at": 1, "set": {"optimizer.lr": 0.2}}],
        around={"changes": [{"at": 1, "set": {"optimizer.lr": 0.5}}]},
    ),
}
RAY = "is asked of Ray: the test below"
EXPERIMENT_NOT_SHOWN = {
    **dict.fromkeys(("name", "tags", "notes"), "is what a run is found by: the test below"),
    "upload_every": "needs an object store: tests/orchestrator/disk/rows/test_rank_files.py",
    **dict.fromkeys(
        (
            "notify",
            "notify.events",
            "notify.target",
            "notify.url",
            "notify.format",
            "notify.command",
        ),
        "is what a server gets: tests/orchestrator/runs/test_alerts.py",
    ),
    "environment": "is asked of a cluster: tests/orchestrator/engines/test_ray_environment.py",
    **dict.fromkeys(
        ("hang.after", "hang.action"),
        "needs a rank that hangs: tests/orchestrator/engines/test_hang_watch.py",
    ),
    "max_failures": "needs a process that is lost: tests/ray/test_survive.py",
    "max_preemptions": "needs a node that is taken away: tests/ray/test_preemption.py",
    "loader.pin_memory": CUDA,
    "workers.count": RAY,
    "workers.gpu": RAY,
    "workers.cpus": RAY,
    "workers.memory": RAY,
    "workers.accelerator": RAY,
    "workers.resources": RAY,
    "workers.spares": RAY,
    "sweep": "is walked over below",
}


def test_every_key_of_an_experiment_is_covered() -> None:
    assert set(keys_of(Experiment)) <= EXPERIMENT.keys() | EXPERIMENT_NOT_SHOWN.keys()
    assert not EXPERIMENT.keys() & EXPERIMENT_NOT_SHOWN.keys()


def test_each_key_of_an_experiment_changes_the_run_or_is_refused(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        model_settings,
        "compile_in_place",
        lambda module, mode: WATCHED.update([f"compiled {mode}"]),
    )
    monkeypatch.chdir(tmp_path)
    for seed, file in enumerate(("first.pt", "second.pt")):
        torch.manual_seed(seed)
        torch.save(
            {
                part: {**Points().model().state_dict(), "9.weight": torch.rand(3)}
                for part in ("model", "ema")
            },
            file,
        )
    references: dict[str, str] = {}
    ignored = []
    for path, key in EXPERIMENT.items():
        base = {**PLAIN, **key.around, "hooks": {**QUIET, **key.around.get("hooks", {})}}
        known = json.dumps(base, sort_keys=True)
        if known not in references:
            references[known] = left(base)
        path = path.removesuffix(".auto")
        changed = (
            {**base, "changes": key.value}
            if path.startswith("changes")
            else with_value(base, path, key.value)
        )
        if not acts(partial(left, changed), references[known], path):
            ignored.append(path)
    assert not ignored


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 2),
        ("count", [1, 2]),
        ("gpu", True),
        ("gpu", 0.25),
        ("cpus", 2),
        ("memory", "8 GiB"),
        ("accelerator", "H100"),
        ("resources", {"spot": 1}),
        ("spares", 1),
    ],
)
def test_each_key_of_workers_changes_the_requested_resources(key: str, value: Any) -> None:
    gpu = {"gpu": True} if key == "accelerator" else {}
    asked = [
        (Resources.required_by(workers), workers.min_count, workers.max_count)
        for workers in (Workers(**gpu), Workers(**gpu, **{key: value}))
    ]
    assert asked[0] != asked[1]


@pytest.mark.parametrize(
    ("key", "value"), [("name", "other"), ("tags", ["late"]), ("notes", "the second")]
)
def test_name_tags_and_notes_are_listed(key: str, value: Any, tmp_path: Path) -> None:
    first, second = (
        {**PLAIN, "hooks": QUIET, **more} for more in ({}, {"name": "second", key: value})
    )
    for written in (first, second):
        run(make_experiment(written), storage=tmp_path, local=True)
    found = {folder.name: (one.tags, one.notes) for folder, one in list_metadata(tmp_path)}
    assert found == {
        "run": ([], ""),
        second["name"]: (second.get("tags", []), second.get("notes", "")),
    }
