"""`--plan`: what would be done."""

import json
import os
from typing import Any

import pytest

from orchestrator.cli.plan import SweepPlan, make_plan
from orchestrator.cli.plan_text import show_plan
from orchestrator.experiment.load import make_experiment, to_dict
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.reader import parse_yaml
from tests.orchestrator.experiment.samples import HERE

OFF = dict.fromkeys(
    (
        "sampler_seed",
        "sync_buffers",
        "param_scheduler",
        "perf_stats",
        "memory_stats",
        "console",
        "checkpoint",
    )
)
SPACE = {"seed": {"grid": [1, 2, 3]}, "optimizer.lr": {"uniform": [0.1, 0.2]}}


def line(**more: Any) -> Experiment:
    hooks = more.pop("hooks", None) or {
        **OFF,
        "late": {"type": f"{HERE}:Shadow", "priority": "LOWEST"},
        "early": {"type": f"{HERE}:Shadow"},
        "band": {"type": f"{HERE}:Band", "low": 0, "high": 1},
    }
    return make_experiment(
        {"name": "line", "task": f"{HERE}:Line", "epochs": 1, "hooks": hooks, **more}
    )


def test_plan_lists_hooks_by_event_and_rank() -> None:
    assert make_plan(line(), "runs", None).hooks == {
        "rank 0": {"on_update": ["early", "late"], "on_step": ["band"]}
    }
    assert make_plan(line(workers={"count": 2}), "runs", None).hooks == {
        "rank 0": {"on_update": ["early", "late"], "on_step": ["band"]},
        "other ranks": {"on_update": ["early", "late"]},
    }


def test_plan_has_the_folder_of_the_run() -> None:
    assert make_plan(line(), "s3://bucket/runs/", None).path == "s3://bucket/runs/line"
    assert make_plan(line(), "runs", "other").path == "runs/other"


def test_plan_has_required_and_present_resources() -> None:
    resources = make_plan(line(workers={"count": 3, "cpus": 0.5}), "runs", None).resources
    assert resources.required == {"CPU": 1.5}
    assert resources.present is not None
    assert resources.present["CPU"] == os.cpu_count()
    assert make_plan(line(), "runs", None, "ray://head:10001").resources.present is None


def test_plan_counts_trials_and_trainings() -> None:
    cpus = os.cpu_count() or 1
    swept = line(sweep={"metric": "val/loss", "trials": 6, "space": SPACE}, workers={"count": cpus})
    assert make_plan(swept, "runs", None).sweep == SweepPlan(
        trials=6,
        repeats=1,
        repeated_path="seed",
        scheduler="fifo",
        at_once=1,
        shared_training=None,
    )
    wide = line(
        sweep={"metric": "val/loss", "trials": 6, "space": SPACE}, workers={"count": cpus + 1}
    )
    assert make_plan(wide, "runs", None).sweep == SweepPlan(
        trials=6,
        repeats=1,
        repeated_path="seed",
        scheduler="fifo",
        at_once=0,
        shared_training=None,
    )
    assert make_plan(wide, "runs", None, "auto").sweep == SweepPlan(
        trials=6,
        repeats=1,
        repeated_path="seed",
        scheduler="fifo",
        at_once=None,
        shared_training=None,
    )


def test_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = line(
        workers={"count": (os.cpu_count() or 1) + 1}, sweep={"metric": "val/loss", "space": SPACE}
    )
    show_plan(make_plan(experiment, "runs", None), as_json=False)
    out = capsys.readouterr().out
    rest, _, text = out.partition("\n\nname: ")
    assert rest.startswith("resources: "), "the answer comes first"
    assert parse_yaml(f"name: {text}", "stdout").data == to_dict(experiment)
    assert "on_update  early, late  early, late" in rest
    assert "on_step    band         -" in rest
    assert "folder:         runs/line" in rest
    assert (
        f"does not fit:   needs {(os.cpu_count() or 1) + 1} CPUs, has {os.cpu_count()} CPU" in rest
    )
    assert "3, 0 at a time" in rest


@pytest.mark.parametrize(
    ("rates", "counted"), [([0.1], "2 in 1 training,"), ([0.1, 0.2], "4 in 2 trainings,")]
)
def test_printed_plan_counts_trainings_that_trials_share(
    rates: list[float], counted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"optimizer.lr": {"grid": rates}, "hooks.ema.decay": {"grid": [0.5, 0.9]}}
    swept = line(
        hooks={**OFF, "ema": {}},
        sweep={"metric": "val/loss", "search": "grid", "space": space},
    )
    show_plan(make_plan(swept, "runs", None), as_json=False)
    assert f"trials:         {counted}" in capsys.readouterr().out


def test_reason_that_no_trials_share_a_training_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    swept = line(
        hooks={**OFF, "ema": {}},
        sweep={
            "metric": "val/loss",
            "search": "grid",
            "space": {"hooks.ema.decay": {"grid": [0.5, 0.9]}},
            "share_training": False,
        },
    )
    show_plan(make_plan(swept, "runs", None), as_json=False)
    assert "not shared:     share_training is false" in capsys.readouterr().out.splitlines()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    hook = {"hooks": {"early": {"type": f"{HERE}:Shadow"}, **OFF}}
    space = {**SPACE, "hooks.early.decay": {"choice": [0.1, 0.2]}}
    experiment = line(**hook, sweep={"metric": "val/loss", "trials": 6, "space": space})
    show_plan(make_plan(experiment, "runs", None, "ray://head:10001"), as_json=True)
    plan = json.loads(capsys.readouterr().out)
    assert plan.pop("config")["name"] == "line"
    assert plan == {
        "path": "runs/line",
        "resources": {"required": {"CPU": 1.0}, "present": None, "address": "ray://head:10001"},
        "continued_from": None,
        "hooks": {"rank 0": {"on_update": ["early"]}},
        "sweep": {
            "trials": 6,
            "repeats": 1,
            "repeated_path": "seed",
            "scheduler": "fifo",
            "at_once": None,
            "shared_training": {
                "trainings": 6,
                "shared": [],
                "not_shared": {"hooks.early.decay": "hooks.early does not declare `observes`"},
                "reason_for_all": "",
            },
        },
    }
