from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import RunError, UsageError, open_sweep, resume_sweep, run, sweep
from orchestrator.cli import app
from orchestrator.report.sweep import sweep_page
from orchestrator.sweeps import driver
from orchestrator.terminal.sweep_status import LiveSweep
from tests.tasks import described

SETTINGS = ("mode", "metric", "trials", "repeats", "search", "stop", "budget", "points", "scheduler", "share_training")


def searching(space: dict[str, Any], **fields: Any) -> Any:
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    settings |= {key: fields.pop(key) for key in SETTINGS if key in fields}
    return described(**{"epochs": 1, "sweep": settings, **fields})


def test_a_grid_of_two_by_two_is_four_trials_each_the_run_it_would_be_alone(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [0.001, 0.5]}, "hooks.ema.decay": {"grid": [0.0, 0.9]}}
    outcome = sweep(searching(space, hooks={"ema": {}}, share_training=False), tmp_path, local=True)
    assert outcome.status == "finished"
    trials = outcome.trials
    assert not {"configuration", "config/seed", "leader"} & {*trials.columns}
    assert list(trials.index) == ["trial-0000", "trial-0001", "trial-0002", "trial-0003"]
    pairs = [*zip(trials["config/optimizer.lr"], trials["config/hooks.ema.decay"], strict=True)]
    assert sorted(pairs) == sorted(itertools.product([0.001, 0.5], [0.0, 0.9]))
    assert trials["status"].tolist() == ["finished"] * 4
    for trial, (lr, decay) in zip(outcome.runs, pairs, strict=True):
        assert (Path(trial.path) / "stats.parquet").exists()
        assert trial.config["sweep"] is None
        assert trial.metrics["val/accuracy"].max() == trials.loc[trial.name, "val/accuracy"]
        optimizer = {"type": "SGD", "lr": lr, "momentum": 0.9}
        experiment = described(epochs=1, optimizer=optimizer, hooks={"ema": {"decay": decay}})
        alone = run(experiment, tmp_path, f"alone-{trial.name}", local=True)
        assert trial.stats["loss"].tolist() == alone.stats["loss"].tolist()


def test_repeats_are_trials_with_consecutive_seeds(tmp_path: Path) -> None:
    outcome = sweep(searching({"optimizer.lr": {"grid": [0.01, 0.5]}}, repeats=3), tmp_path, local=True)
    table = outcome.trials
    assert table["config/optimizer.lr"].tolist() == [0.01] * 3 + [0.5] * 3
    assert table["config/seed"].tolist() == [0, 1, 2] * 2
    assert table["configuration"].tolist() == [0] * 3 + [1] * 3
    assert [run.config["seed"] for run in outcome.runs] == [0, 1, 2] * 2
    assert table["val/loss"].nunique() == 6
    reached = table.groupby("configuration")["val/accuracy"]
    expected = pd.DataFrame({"mean": reached.mean(), "std": reached.std()}).sort_values("mean", ascending=False)
    configurations = outcome.configurations
    assert configurations[["mean", "std"]].to_numpy() == pytest.approx(expected.to_numpy())
    assert configurations["n"].tolist() == [3, 3]
    # 4.30265 is the 97.5 % quantile of Student's t with two degrees of freedom.
    half = 4.30265 * expected["std"] / 3**0.5
    assert (configurations["high"] - configurations["mean"]).tolist() == pytest.approx(half.tolist(), rel=1e-5)
    assert "config/seed" not in configurations
    best = reached.idxmax()[expected.index[0]]
    assert outcome.best.name == best == configurations["best"].iloc[0] == outcome.folder.metadata().best["trial"]
    shown = CliRunner().invoke(app, ["show", outcome.path]).stdout
    mean = f"{expected['mean'].iloc[0]:.4g}"
    assert f"Best configuration: {expected.index[0]} with val/accuracy {mean} ± " in shown
    live = LiveSweep(outcome.folder).look()
    assert (live.best, live.configuration.describe("val/accuracy") in shown) == (best, True)
    assert ">Configurations<" in sweep_page(outcome, "now")
    with pytest.raises(UsageError, match=r"2 configurations .* have val/accuracy; parameter importance needs 10"):
        outcome.importance()


@dataclass
class KeepsSweep(Hook):
    """Keeps the sweep that a hook finds in its config."""

    sweeps: ClassVar[list[Any]] = []

    def on_start(self, state: State) -> None:
        self.sweeps.append(state.config["sweep"])


def test_hooks_know_the_sweep_of_their_trial(tmp_path: Path) -> None:
    """A tracker shows first what trials differ in, though the trial's own experiment has no sweep."""
    KeepsSweep.sweeps.clear()
    space = {"optimizer.lr": {"grid": [0.01, 0.5]}}
    sweep(searching(space, hooks={"keeps": {"type": f"{__name__}:KeepsSweep"}}), tmp_path, local=True)
    assert [(settings["metric"], settings["space"]) for settings in KeepsSweep.sweeps] == [("val/accuracy", space)] * 2


def test_a_trial_that_fails_does_not_end_the_sweep(tmp_path: Path) -> None:
    outcome = sweep(searching({"task_args.fails": {"grid": [True, False]}}), tmp_path, local=True)
    assert outcome.status == "finished"
    trials = outcome.trials
    assert trials["status"].tolist() == ["failed", "finished"]
    assert trials["error"].tolist()[0].startswith("rank 0: ArithmeticError: this loss fails on purpose (")
    assert "in loss" in (tmp_path / "points/trials/trial-0000/log.txt").read_text()
    assert outcome.best.name == "trial-0001"
    assert driver.failed_trials(outcome) == 1


@dataclass
class LosesTheGPU(Hook):
    """Fails as a GPU does."""

    def on_step(self, state: State) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_no_trial_begins_after_the_gpu_is_lost(tmp_path: Path) -> None:
    lost = searching({"seed": {"grid": [1, 2]}}, hooks={"lost": {"type": f"{__name__}:LosesTheGPU"}})
    with pytest.raises(RunError, match=r"the GPU failed(.|\n)*can no longer use its GPU, so the sweep ends here"):
        sweep(lost, tmp_path, local=True)
    assert open_sweep(tmp_path / "points").trials["status"].tolist() == ["failed"]


def test_values_that_cannot_be_combined_fail_their_trial_alone(tmp_path: Path) -> None:
    """Each value is valid by itself, so the error comes when the trial begins."""
    space = {"hooks.nan_guard.action": {"grid": ["raise", "skip"]}, "hooks.nan_guard.every": {"grid": [1, 2]}}
    outcome = sweep(searching(space, hooks={"nan_guard": {}}), tmp_path, local=True)
    assert (outcome.status, len(outcome.trials)) == ("finished", 4)
    (failed,) = outcome.trials.index[outcome.trials["status"] == "failed"]
    row = outcome.trials.loc[failed]
    assert (row["config/hooks.nan_guard.action"], row["config/hooks.nan_guard.every"]) == ("skip", 2)
    assert "action: skip needs every: 1 step" in row["error"]
    with pytest.raises(UsageError, match=r"never was an experiment: .*action: skip needs every: 1 step"):
        outcome.experiment(failed)


@pytest.mark.parametrize(("metric", "mode"), [("val/accuracy", "max"), ("val/loss", "min")])
def test_the_best_is_the_best_of_its_metric(tmp_path: Path, metric: str, mode: str) -> None:
    space = {"optimizer.lr": {"grid": [0.0001, 0.3, 0.01]}}
    outcome = sweep(searching(space, metric=metric, mode=mode, epochs=3), tmp_path, local=True)
    values = {trial.name: getattr(trial.metrics[metric], mode)() for trial in outcome.runs}
    assert len(set(values.values())) == 3
    assert outcome.best.name == (max if mode == "max" else min)(values, key=lambda name: values[name])
    assert outcome.trials[metric].to_dict() == values


def test_a_sweep_asked_to_stop_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedAfterTwoTrials:
        def __init__(self, *words: str) -> None: ...

        def __enter__(self) -> AskedAfterTwoTrials:
            return self

        def __exit__(self, *error: object) -> None: ...

        @property
        def requested(self) -> bool:
            ended = [
                file
                for file in tmp_path.glob("points/trials/*/run.json")
                if json.loads(file.read_text())["status"] == "finished"
            ]
            return len(ended) >= 2

        def fail(self, why: str) -> None: ...

    monkeypatch.setattr(driver, "Interrupts", AskedAfterTwoTrials)
    outcome = sweep(searching({"optimizer.lr": {"grid": [0.01, 0.02, 0.03, 0.04]}}), tmp_path, local=True)
    assert outcome.status == "interrupted"
    assert outcome.trials["status"].tolist() == ["finished", "finished"]


def test_a_missing_section_and_a_taken_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sweep section"):
        sweep(described(), tmp_path, local=True)
    first = sweep(searching({"optimizer.lr": {"grid": [0.01]}}), tmp_path, local=True)
    with pytest.raises(UsageError, match="exists already"):
        sweep(searching({"optimizer.lr": {"grid": [0.01]}}), tmp_path, local=True)
    assert open_sweep(first.path).status == "finished"


def test_rules_end_a_trial_and_the_budget_of_samples_ends_the_sweep(tmp_path: Path) -> None:
    """An epoch has 52 samples: the second trial stops at its first report, and no third begins."""
    ends = {"budget": {"samples": 3 * 52}, "stop": {"max_reports": 2}}
    outcome = sweep(searching({"optimizer.lr": {"grid": [0.01, 0.02, 0.03]}}, epochs=3, **ends), tmp_path, local=True)
    assert outcome.status == "finished"
    assert outcome.trials["reports"].tolist() == [2, 1]
    assert outcome.trials["status"].tolist() == ["stopped", "stopped"]
    assert outcome.trials["stopped"].tolist() == [
        "max_reports: 2 reached",
        "the sweep's budget of 156 samples is used up",
    ]


def test_optuna_learns_in_this_process_too(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"optimizer.lr": {"loguniform": [0.001, 0.5]}}
    point = {"optimizer.lr": 0.25}
    outcome = sweep(searching(space, search="optuna", trials=3, points=[point]), tmp_path, local=True)
    drawn = outcome.trials["config/optimizer.lr"].tolist()
    assert drawn[0] == 0.25
    assert len(set(drawn)) == 3


@dataclass
class Height(Hook):
    """Gives val a metric that rises with every epoch, from a height of its own."""

    of: float = 0.0

    def on_phase_end(self, state: State) -> None:
        if state.phase == "val":
            state.metrics["val/height"] = self.of + state.epoch


def climbing(heights: list[float], scheduler: Any, **fields: Any) -> Any:
    hooks = {"height": {"type": f"{__name__}:Height"}}
    return searching(
        {"hooks.height.of": {"grid": heights}},
        hooks=hooks,
        metric="val/height",
        scheduler=scheduler,
        epochs=4,
        **fields,
    )


@pytest.mark.parametrize(
    ("heights", "scheduler", "reports"),
    [
        # At 1, 2 and 4 reports the better half goes on: 1 is below the median of (2), 3 is not below that of (2, 1),
        # and 2.4 not below that of (2, 1, 3); but at its second report 3.4 is below the median of (3, 4).
        ([2.0, 1.0, 3.0, 2.4], {"type": "asha", "reduction_factor": 2}, [4, 1, 4, 2]),
        # After one report 2.4 is below the median of (2, 4), and 3 is not below that of (2, 4, 2.4); after two the
        # others had 2.5 and 4.5 on average, and 4 is not below their median.
        ([2.0, 4.0, 2.4, 3.0], {"type": "median", "grace_period": 1, "min_samples_required": 2}, [4, 4, 1, 4]),
    ],
)
def test_schedulers_stop_trials_that_run_one_after_the_other(
    tmp_path: Path, heights: list[float], scheduler: dict[str, Any], reports: list[int]
) -> None:
    done = sweep(climbing(heights, scheduler), tmp_path, local=True)
    assert done.status == "finished"
    assert done.trials["reports"].tolist() == reports
    for trial, count in zip(done.runs, reports, strict=True):
        expected = ("finished", []) if count == 4 else ("stopped", ["the scheduler ended the trial"])
        assert (trial.status, trial.folder.metadata().stopped) == expected


def test_a_resumed_sweep_replays_earlier_reports_to_its_scheduler(tmp_path: Path) -> None:
    """The last trial ends as it would have in an undisturbed sweep."""
    done = sweep(climbing([2.0, 1.0, 0.5], "asha", budget={"samples": 5 * 52}), tmp_path, local=True)
    assert done.trials["reports"].tolist() == [4, 1]
    file = Path(done.path) / "experiment.yaml"
    file.write_text(file.read_text().replace("samples: 260", "samples: 9000"))
    done.folder.update(status="interrupted")
    again = resume_sweep(done.path)
    assert again.trials["reports"].tolist() == [4, 1, 1]


def test_a_misspelt_metric_ends_the_sweep_with_the_first_report_that_could_hold_it(tmp_path: Path) -> None:
    """Validation comes after every second epoch, so the first of four reports cannot tell."""
    misspelt = searching({"optimizer.lr": {"grid": [0.01, 0.1]}}, metric="val/acuracy", epochs=4, validate_every=2)
    with pytest.raises(
        RunError, match=r"has the sweep's metric 'val/acuracy'; there are: .*\(did you mean 'val/accuracy'\?\)"
    ) as caught:
        sweep(misspelt, tmp_path, local=True)
    outcome = open_sweep(tmp_path / "points")
    assert (outcome.status, outcome.folder.metadata().error) == ("failed", str(caught.value))
    assert outcome.trials[["status", "reports", "error"]].to_numpy().tolist() == [["failed", 2, str(caught.value)]]


@dataclass
class Late(Hook):
    """Reports a metric after the second epoch, unless switched off."""

    reports: bool = True

    def on_phase_end(self, state: State) -> None:
        if state.phase == "val" and state.epoch > 1 and self.reports:
            state.metrics["val/fid"] = 1.0


def test_a_metric_may_come_late_and_once_it_was_reported_a_trial_without_it_fails_alone(tmp_path: Path) -> None:
    space = {"hooks.late.reports": {"grid": [True, False, True]}}
    late = {"late": {"type": f"{__name__}:Late"}}
    outcome = sweep(searching(space, metric="val/fid", epochs=2, hooks=late), tmp_path, local=True)
    assert outcome.status == "finished"
    assert outcome.trials["status"].tolist() == ["finished", "failed", "finished"]
    assert outcome.trials["val/fid"].tolist()[::2] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric": "stats/setp_s/p95", "mode": "min"}, r"'stats/setp_s/p95'; .*\(did you mean 'stats/step_s/p95'\?\)"),
        ({"task_args": {"val": 0}}, "'val/accuracy'; there are: train/loss"),
    ],
)
def test_a_metric_that_no_report_can_have_ends_the_sweep_with_the_first(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    """A misspelt column of the rows, and a phase without data."""
    with pytest.raises(RunError, match=f"has the sweep's metric {message}"):
        sweep(searching({"optimizer.lr": {"grid": [0.01, 0.1]}}, epochs=3, **fields), tmp_path, local=True)
    assert open_sweep(tmp_path / "points").trials["reports"].tolist() == [1]


@pytest.mark.parametrize("scheduler", ["pbt", "pb2", {"type": "hyperband", "max_t": 4}])
def test_schedulers_whose_trials_wait_for_each_other_are_refused(tmp_path: Path, scheduler: Any) -> None:
    space = {"optimizer.lr": {"loguniform": [0.001, 0.5]}}
    with pytest.raises(UsageError, match="needs concurrent trials"):
        sweep(searching(space, search="random", trials=3, scheduler=scheduler), tmp_path, local=True)
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    space = {"optimizer.lr": {"loguniform": [0.001, 0.5]}}
    with pytest.raises(UsageError, match=r"optuna, which is not installed: pip install 'hookyard\[optuna\]'"):
        sweep(searching(space, search="optuna"), tmp_path, local=True)
    with pytest.raises(UsageError, match=r"sklearn, which is not installed: pip install 'hookyard\[pb2\]'"):
        sweep(searching(space, search="random", trials=3, scheduler="pb2"), tmp_path)
    assert not list(tmp_path.iterdir())
