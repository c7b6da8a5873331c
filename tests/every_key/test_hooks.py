"""Each field of each hook changes the run, or is refused."""

import json
from collections.abc import Mapping
from functools import partial
from inspect import get_annotations
from typing import Any

import pytest

from hooks import HOOKS
from orchestrator.experiment.fields.parameters import list_parameters
from tests.every_key.conftest import Left
from tests.every_key.tasks import HERE, PLAIN, QUIET, VIEWS, breaking
from tests.every_key.walk import CUDA, Key, acts


def of(
    hook: Mapping[str, Any] | None = None, around: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Key]:
    """Fields with their other values, all beside the same."""
    hook = dict(hook or {})
    around = dict(around or {})
    return {
        name: (
            Key(value.value, {**hook, **value.hook}, {**around, **value.around})
            if isinstance(value, Key)
            else Key(value, hook, around)
        )
        for name, value in fields.items()
    }


MEASURED = {"hooks": {"perf_stats": True, "gradient_clip": {}}}
LOGGED = {"hooks": {"perf_stats": True}, "epochs": 3}
POWER = {"average": "power", "std": 0.1}
SLOWEST = {"slowest": {"column": "step_s", "method": "max", "window": "epoch"}}
STEPPED = {"scheduler": {"type": "StepLR", "step_size": 1, "gamma": 0.5}}
CLOUDS = {"task": "tests.hooks.self_supervised.clouds:Clouds", "task_args": {"val": 8}, "epochs": 2}
DINO = {"task": VIEWS, "task_args": {"method": "dino"}, "epochs": 3}
SWAPPED = of(
    None,
    CLOUDS,
    prototypes=Key("trunk.0"),
    assigned_views=[1, 2],
    epsilon=0.5,
    iterations=1,
    queue_length=8,
    queue_begin=Key("3 steps", {"queue_length": 8}),
    hard_codes_until="3 steps",
    normalize_prototypes=False,
)
CENTRED = of(
    None,
    None,
    encoder="",
    momentum=0.5,
    global_views=1,
    center_momentum=0.5,
    temperature=0.2,
    warmup_temperature=Key(0.02, {"warmup_epochs": 2}),
    warmup_epochs=2,
)

WALK: dict[str, dict[str, Key]] = {
    "anomaly_detection": of(None, breaking("gradient"), check_nan=False),
    "early_stopping": of(
        {"monitor": "val/loss", "patience": 2},
        {"epochs": 5},
        monitor=Key("val/accuracy"),
        mode="max",
        min_delta=10.0,
        patience=Key(1, {"mode": "max"}),
        stopping_threshold=5.0,
        check_finite=Key(False, {"monitor": "train/loss"}, breaking("nan")),
        strict=Key(False, {"monitor": "val/no_loss"}),
    ),
    "ema": of(
        None,
        {"task_args": {"batch_norm": True}},
        decay=0.5,
        average="stochastic",
        gamma=Key(1, {"average": "annealing"}),
        every=3,
        begin=1,
        buffers="ema",
        evaluate="both",
        std=Key([0.2, 0.1], POWER),
        snapshots=Key("3 steps", POWER),
        keep_snapshots=Key(2, {**POWER, "snapshots": "1 step"}),
    ),
    "empty_cache": of(
        None,
        None,
        before_epoch=True,
        after_epoch=False,
        after_iter=True,
        every=Key(2, {"after_iter": True}),
    ),
    "freeze_parameters": of(
        {"patterns": ["0.*"]},
        None,
        patterns=["4.*"],
        until="5 steps",
        match=Key("regex", {"patterns": ["0.*"]}, {"task": f"{HERE}:Numbered"}),
    ),
    "garbage_collection": of(None, None, every=2),
    "gradient_clip": of(None, None, max_norm=0.01, norm_type=1.0, max_value=0.01),
    "loss_spike": of(
        {"threshold": 4.0, "window": 12, "warmup": 4},
        breaking("spike", times=2),
        threshold=1e9,
        window=3,
        warmup=10,
        patience=0,
    ),
    "nan_guard": of(
        None,
        breaking("nan", times=2),
        action="stop",
        patience=Key(0, {"action": "skip"}),
        every=4,
        dumps=0,
    ),
    "output_mask": of(None, {"task_args": {"val": 3}}, target=2),
    "param_scheduler": of(
        None,
        STEPPED,
        every="1 step",
        monitor=Key(None, {"monitor": "val/loss"}, {"scheduler": {"type": "ReduceLROnPlateau"}}),
    ),
    "precise_batch_norm": of(
        {"num_samples": 16},
        {"task_args": {"batch_norm": True, "noisy": True}},
        num_samples=32,
        cache_samples=True,
    ),
    "time_limit": of({"limit": 3600}, None, limit=0.01),
    "activation_stats": of(
        {"every": "2 steps"},
        {"task": f"{HERE}:Images"},
        every="3 steps",
        ignored=["Linear"],
        sample_feature_map=True,
    ),
    "device_stats": of(None, None, every=3),
    "layer_memory": of({"every": "2 steps"}, None, every="3 steps"),
    "memory_snapshot": of(None, None, steps=[3]),
    "memory_stats": of({"min_seconds": 0}, None, every=3, min_seconds=3600),
    "model_complexity": of(None, None, max_depth=0),
    "optimizer_stats": of({"every": "2 steps"}, None, every="3 steps"),
    "profiler": of(
        {"skip_first": 2, "active": 1},
        None,
        skip_first=3,
        wait=1,
        warmup=2,
        active=2,
        repeat=2,
        profiled_ranks=[1],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_flops=True,
        stop_after=True,
    ),
    "row_stats": of({"report": ["loss/mean"]}, None, report=["loss/max"]),
    "throughput": of(
        {"every": 3, "window": 4},
        {"hooks": {"perf_stats": True, "model_complexity": True}},
        every=4,
        window=2,
        peak_flops=1e9,
    ),
    "console": of(
        {"every": 3, "min_seconds": 0},
        MEASURED,
        every=2,
        window=2,
        columns=["data_wait_s"],
        statistics=SLOWEST,
        min_seconds=3600,
    ),
    "json_lines": of({"every": 3}, LOGGED, every=2, window=2, statistics=SLOWEST),
    "output_csv": of(
        None, {"task_args": {"test": 9}}, id_key=1, target_key=None, scores=True, phases=["val"]
    ),
    "progress_bar": of(None, None, every=3),
    "tensorboard": of(
        {"every": 3},
        LOGGED,
        every=2,
        window=2,
        statistics=SLOWEST,
        axis="samples",
        histograms="2 steps",
        graph=True,
    ),
    "checkpoint": of(
        {"keep": 2},
        {"epochs": 4},
        every="3 steps",
        keep=1,
        save_last=Key(False, {"every": "9 steps"}),
        best="val/loss",
        mode=Key("min", {"best": "val/accuracy"}),
        begin=2,
        publish=["model"],
        weights="trainable",
    ),
    "export": of(
        {"format": "trace"},
        {"hooks": {"ema": {"decay": 0.5}}},
        format="script",
        every=1,
        weights="raw",
        dynamic_batch=False,
    ),
    "byol": of(
        None,
        {"task": VIEWS, "task_args": {"method": "byol"}},
        encoder="encoder.backbone",
        momentum=0.5,
    ),
    "deepcluster": of(
        {"clusters": [3, 3], "assigned_views": [0, 1]},
        {**CLOUDS, "task_args": {"prototypes": 0}},
        clusters=[3, 4],
        assigned_views=[1, 2],
        iterations=1,
    ),
    "dino": {name: Key(key.value, key.hook, DINO) for name, key in CENTRED.items()},
    "distillation": of(
        {"teacher": "tests.hooks.self_supervised.test_distillation:big_teacher"},
        {"task": "tests.hooks.self_supervised.test_distillation:Distilled"},
        teacher=f"{HERE}:other_teacher",
        checkpoint="/no/such/file",
    ),
    "ibot": of(
        None,
        {"task": f"{HERE}:Masked", "epochs": 3},
        temperature=0.2,
        patch_center_momentum=0.1,
        patch_temperature=0.2,
        warmup_patch_temperature=Key(0.02, {"warmup_epochs": 2}),
    ),
    "moco": of(
        {"queue_length": 16},
        {"task": VIEWS},
        encoder="encoder.backbone",
        momentum=0.5,
        queue_length=24,
    ),
    "swav": SWAPPED,
    "swav_momentum": of(None, CLOUDS, momentum=0.5),
}

SERVICE = "needs a tracking service; tests/hooks/logs have what that is told"
NOT_SHOWN = {
    "ema.device": f"{CUDA}: the averages are kept elsewhere, with the same values",
    "memory_snapshot.max_entries": CUDA,
    "profiler.activities": CUDA,
    "tensorboard.flush": "is the time until points are on disk",
    "export.tolerance": "decides when an export is wrong, which torch's is not",
    "checkpoint.background": (
        "says when files are written, which then hold the same:"
        " tests/orchestrator/loop/saving/test_background_writes.py"
    ),
    "checkpoint.out_dir": "is read by the run, not by the loop: tests/orchestrator/runs/test_start_and_resume.py",
    **{f"mlflow.{name}": SERVICE for name in ("wait", "tracking_uri", "experiment", "tags")},
    **{f"wandb.{name}": SERVICE for name in ("project", "entity", "group", "tags", "mode")},
}
"""Keys that the tests do not vary, each with the reason."""


def written(name: str, key: Key, **more: Any) -> dict[str, Any]:
    hooks = {**QUIET, **key.around.get("hooks", {}), name: {**key.hook, **more}}
    return {**PLAIN, **key.around, "hooks": hooks}


def declared(hook: str, field: str) -> str:
    """Return a field by the class that declares it; one that several hooks inherit is walked in one
    of them."""
    return next(
        f"{cls.__name__}.{field}" for cls in HOOKS[hook].__mro__ if field in get_annotations(cls)
    )


def test_every_field_of_every_hook_is_covered() -> None:
    known: set[str] = set()
    for name, cls in HOOKS.items():
        known.update(declared(name, field) for field in list_parameters(cls))
    walked: set[str] = set()
    for name, fields in WALK.items():
        walked.update(declared(name, field) for field in fields)
    not_shown = {declared(*path.split(".")) for path in NOT_SHOWN}
    assert walked | not_shown == known
    assert not walked & not_shown


# A warning of anomaly_detection, about the NaN that it is given.
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize("name", list(WALK))
def test_each_field_of_a_hook_changes_the_run_or_is_refused(name: str, left: Left) -> None:
    references: dict[str, str] = {}
    ignored = []
    for field_name, key in WALK[name].items():
        base = written(name, key)
        known = json.dumps(base, sort_keys=True)
        if known not in references:
            references[known] = left(base)
            if len(references) == 1:
                assert left(base) == references[known], (
                    "two runs of one experiment leave something different, so that nothing is shown"
                )
        if not acts(
            partial(left, written(name, key, **{field_name: key.value})),
            references[known],
            field_name,
        ):
            ignored.append(field_name)
    assert not ignored
