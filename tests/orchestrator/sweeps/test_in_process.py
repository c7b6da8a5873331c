import itertools
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import RunError, UsageError, open_sweep, resume_sweep, run, sweep
from orchestrator.cli import app
from orchestrator.disk.rows import compaction
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment_from_source
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.runs.result import open_run
from orchestrator.sweeps import requirements, run_trials
from orchestrator.sweeps.begin_trial import begin_trial, make_trial_source
from tests.orchestrator.runs.written import change
from tests.tasks import described

SETTINGS = (
    "mode",
    "metric",
    "trials",
    "repeats",
    "search",
    "stop",
    "budget",
    "points",
    "scheduler",
    "share_training",
)


def searching(space: dict[str, Any], **fields: Any) -> Any:
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    settings |= {key: fields.pop(key) for key in SETTINGS if key in fields}
    return described(**{"epochs": 1, "sweep": settings, **fields})


def test_grid_trials_are_the_runs_they_would_be_alone(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [0.001, 0.5]}, "hooks.ema.decay": {"grid": [0.0, 0.9]}}
    outcome = sweep(searching(space, hooks={"ema": {}}, share_training=False), tmp_path, local=True)
    assert outcome.status == "finished"
    trials = outcome.trials
    assert not {"configuration", "config/seed", "leader"} & {*trials.columns}
    assert list(trials.index) == ["trial-0000", "trial-0001", "trial-0002", "trial-0003"]
    pairs = [*zip(trials["config/optimizer.lr"], trials["config/hooks.ema.decay"], strict=True)]
    assert sorted(pairs) == sorted(itertools.product([0.001, 0.5], [0.0, 0.9]))
    assert trials["status"].tolist() == ["finished"] * 4
    for trial in outcome.runs:
        assert (Path(trial.path) / "stats.parquet").exists()
        assert trial.config["sweep"] is None
        assert trial.metrics["val/accuracy"].max() == trials.loc[trial.name, "val/accuracy"]
    lr, decay = pairs[-1]
    optimizer = {"type": "SGD", "lr": lr, "momentum": 0.9}
    experiment = described(epochs=1, optimizer=optimizer, hooks={"ema": {"decay": decay}})
    alone = run(experiment, tmp_path, "alone", local=True)
    assert trial.stats["loss"].tolist() == alone.stats["loss"].tolist()


def test_repeats_are_trials_with_consecutive_seeds(tmp_path: Path) -> None:
    outcome = sweep(
        searching({"optimizer.lr": {"grid": [0.01, 0.5]}}, repeats=2), tmp_path, local=True
    )
    table = outcome.trials
    assert table["config/optimizer.lr"].tolist() == [0.01] * 2 + [0.5] * 2
    assert table["config/seed"].tolist() == [0, 1] * 2
    assert table["configuration"].tolist() == [0] * 2 + [1] * 2
    assert [run.config["seed"] for run in outcome.runs] == [0, 1] * 2
    assert table["val/loss"].nunique() == 4
    means = table.groupby("configuration")["val/accuracy"].mean().sort_values(ascending=False)
    configurations = outcome.configurations
    assert configurations["mean"].to_dict() == pytest.approx(means.to_dict())
    assert "config/seed" not in configurations
    shown = CliRunner().invoke(app, ["show", str(outcome.path)]).stdout
    assert f"Best configuration: {means.index[0]} with val/accuracy {means.iloc[0]:.4g} ± " in shown
    with pytest.raises(
        UsageError, match=r" has 2 configurations with val/accuracy; parameter importance needs 10"
    ):
        outcome.importance()


@pytest.mark.parametrize("repeats", [1, 2])
def test_best_of_a_trial_is_by_the_metric_of_its_sweep(tmp_path: Path, repeats: int) -> None:
    """Though its checkpoint may be the best one by another metric."""
    hooks = {"checkpoint": {"best": "val/loss"}}
    space = {"optimizer.lr": {"grid": [0.3]}}
    experiment = searching(space, repeats=repeats, hooks=hooks, epochs=2)
    done = sweep(experiment, tmp_path, local=True)
    for trial in done.runs:
        assert trial.best is not None
        accuracies = trial.metrics["val/accuracy"]
        assert (trial.best.metric, trial.best.mode) == ("val/accuracy", "max")
        assert (trial.best.value, trial.best.epoch) == (accuracies.max(), accuracies.idxmax())
        assert trial.best.checkpoint == f"epoch-000{trial.metrics['val/loss'].idxmin() + 1}"

    (listed,) = json.loads(
        CliRunner().invoke(app, ["ls", "--storage", str(tmp_path), "--json"]).stdout
    )
    best = listed["best"]
    mean = sum(trial.metrics["val/accuracy"].max() for trial in done.runs) / repeats
    assert (best["metric"], best["mode"]) == ("val/accuracy", "max")
    assert best.get("mean", best["value"]) == pytest.approx(mean)


@dataclass
class KeepsSweep(Hook):
    """Keeps the sweep that a hook finds in its config."""

    sweeps: ClassVar[list[Any]] = []

    def on_start(self, state: State) -> None:
        self.sweeps.append(state.config["sweep"])


def test_hooks_know_the_sweep_of_their_trial(tmp_path: Path) -> None:
    """A tracker shows first what trials differ in, though the trial's own experiment has no
    sweep."""
    KeepsSweep.sweeps.clear()
    space = {"optimizer.lr": {"grid": [0.01, 0.5]}}
    sweep(
        searching(space, hooks={"keeps": {"type": f"{__name__}:KeepsSweep"}}), tmp_path, local=True
    )
    assert [(settings["metric"], settings["space"]) for settings in KeepsSweep.sweeps] == [
        ("val/accuracy", space)
    ] * 2


def test_a_trial_that_fails_does_not_end_the_sweep(tmp_path: Path) -> None:
    outcome = sweep(searching({"task_args.fails": {"grid": [True, False]}}), tmp_path, local=True)
    assert outcome.status == "finished"
    trials = outcome.trials
    assert trials["status"].tolist() == ["failed", "finished"]
    assert trials["error"].tolist()[0].startswith("ArithmeticError: this loss fails on purpose (")
    assert "in loss" in (tmp_path / "points/trials/trial-0000/log.txt").read_text()
    assert outcome.best.name == "trial-0001"
    assert outcome.count_failed_trials() == 1


def test_a_sweep_ends_though_its_rows_cannot_be_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A resume compacts them."""
    space = {"optimizer.lr": {"grid": [0.01]}}
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "compact", Mock(side_effect=MemoryError("joining rows")))
        done = sweep(searching(space), tmp_path, local=True)
    assert (done.status, done.folder.read_metadata().status) == ("finished", "finished")
    assert "could not compact the rows" in caplog.text

    compacted = Path(done.path, "trials/trial-0000/stats.parquet")
    assert not compacted.exists()
    change(done.folder, status="interrupted")
    resume_sweep(done.path)
    assert compacted.exists()


@dataclass
class LosesTheGPU(Hook):
    """Raises the error of a broken GPU."""

    def on_step(self, state: State) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_no_trial_begins_after_the_gpu_is_lost(tmp_path: Path) -> None:
    lost = searching(
        {"seed": {"grid": [1, 2]}}, hooks={"lost": {"type": f"{__name__}:LosesTheGPU"}}
    )
    with pytest.raises(RunError, match=r"the GPU failed(.|\n)*The GPU is unusable"):
        sweep(lost, tmp_path, local=True)
    assert open_sweep(tmp_path / "points").trials["status"].tolist() == ["failed"]


def test_values_that_cannot_be_combined_fail_their_trial_alone(tmp_path: Path) -> None:
    """Each value is valid by itself, so the error comes when the trial begins."""
    space = {
        "hooks.nan_guard.action": {"grid": ["raise", "skip"]},
        "hooks.nan_guard.every": {"grid": [1, 2]},
    }
    outcome = sweep(searching(space, hooks={"nan_guard": {}}), tmp_path, local=True)
    assert (outcome.status, len(outcome.trials)) == ("finished", 4)
    (failed,) = outcome.trials.index[outcome.trials["status"] == "failed"]
    row = outcome.trials.loc[failed]
    assert (row["config/hooks.nan_guard.action"], row["config/hooks.nan_guard.every"]) == (
        "skip",
        2,
    )
    assert "action: skip needs every: 1 step" in row["error"]
    with pytest.raises(
        UsageError, match=r"never was an experiment: .*action: skip needs every: 1 step"
    ):
        outcome.experiment(failed)


class InterruptedOnceATrialHasFinished(nullcontext[Any]):
    """Stands for `Interrupts`."""

    folder: ClassVar[Path]

    def __init__(self, *words: str) -> None:
        super().__init__(self)

    def fail(self, reason: str) -> None: ...

    @property
    def requested(self) -> bool:
        records = [
            json.loads(file.read_text()) for file in self.folder.glob("points/trials/*/run.json")
        ]
        return any(record["status"] == "finished" for record in records)


def test_an_interrupted_sweep_keeps_its_finished_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InterruptedOnceATrialHasFinished.folder = tmp_path
    monkeypatch.setattr(run_trials, "Interrupts", InterruptedOnceATrialHasFinished)
    outcome = sweep(searching({"optimizer.lr": {"grid": [0.01, 0.02, 0.03]}}), tmp_path, local=True)
    assert (outcome.status, outcome.trials["status"].tolist()) == ("interrupted", ["finished"])


@dataclass
class Terminates(Hook):
    """Sends this process what Ctrl-C and Slurm send."""

    def on_step(self, state: State) -> None:
        if state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_interruption_saves_the_trial_in_this_process_at_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hooks = {"terminates": {"type": f"{__name__}:Terminates"}}
    space = {"optimizer.lr": {"grid": [0.01, 0.02]}}
    done = sweep(searching(space, hooks=hooks), tmp_path, local=True)
    assert (done.status, done.trials["status"].tolist()) == ("interrupted", ["interrupted"])
    assert Path(done.trial(0).checkpoint("last")).name == "step-00000002"
    assert "Saving a checkpoint after the current step, then ending." in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", ["fifo", "race"])
def test_a_trial_that_pauses_itself_does_not_stop_the_others(
    tmp_path: Path, scheduler: str
) -> None:
    limited = {"time_limit": {"limit": 0.001}}
    space = {"optimizer.lr": {"grid": [0.01, 0.02, 0.03]}}
    experiment = searching(space, hooks=limited, epochs=3, repeats=2, scheduler=scheduler)
    assert [*sweep(experiment, tmp_path, local=True).trials["status"]] == ["interrupted"] * 6


def test_a_missing_section_and_a_taken_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no `sweep` section"):
        sweep(described(), tmp_path, local=True)
    first = sweep(searching({"optimizer.lr": {"grid": [0.01]}}), tmp_path, local=True)
    with pytest.raises(UsageError, match="exists"):
        sweep(searching({"optimizer.lr": {"grid": [0.01]}}), tmp_path, local=True)
    assert open_sweep(first.path).status == "finished"


def test_rules_end_a_trial_and_the_budget_of_samples_ends_the_sweep(tmp_path: Path) -> None:
    """An epoch has 52 samples: the second trial stops at its first report, and no third begins."""
    ends = {"budget": {"samples": 3 * 52}, "stop": {"max_reports": 2}}
    outcome = sweep(
        searching({"optimizer.lr": {"grid": [0.01, 0.02, 0.03]}}, epochs=3, **ends),
        tmp_path,
        local=True,
    )
    assert outcome.status == "finished"
    assert outcome.trials["reports"].tolist() == [2, 1]
    assert outcome.trials["status"].tolist() == ["stopped", "stopped"]
    assert outcome.trials["stopped"].tolist() == [
        "max_reports: 2 reached",
        "the sweep's budget of 156 samples is used up",
    ]


@dataclass
class Height(Hook):
    """Adds a metric to val that rises with every epoch."""

    base: float = 0.0

    def on_phase_end(self, state: State) -> None:
        if state.phase == "val":
            state.metrics["val/height"] = self.base + state.epoch


def test_a_resumed_sweep_replays_earlier_reports_to_its_scheduler(tmp_path: Path) -> None:
    """ASHA stops 1.0 and 0.5 at their first report, after 2.0. The budget ends the first
    attempt."""
    space = {"hooks.height.base": {"grid": [2.0, 1.0, 0.5]}}
    hooks = {"height": {"type": f"{__name__}:Height"}}
    settings = {"metric": "val/height", "scheduler": "asha", "budget": {"samples": 5 * 52}}
    done = sweep(searching(space, hooks=hooks, epochs=4, **settings), tmp_path, local=True)
    assert done.trials["reports"].tolist() == [4, 1]
    assert done.trials.loc["trial-0001", "stopped"] == "asha ended the trial after report 1"
    file = Path(done.path) / "experiment.yaml"
    file.write_text(file.read_text().replace("samples: 260", "samples: 9000"))
    change(done.folder, status="interrupted")
    again = resume_sweep(done.path)
    assert again.trials["reports"].tolist() == [4, 1, 1]


@dataclass
class Late(Hook):
    """Reports a metric after the second epoch, unless switched off."""

    reports: bool = True

    def on_phase_end(self, state: State) -> None:
        if state.phase == "val" and state.epoch > 1 and self.reports:
            state.metrics["val/fid"] = 1.0


def test_a_metric_may_come_late_and_once_it_was_reported_a_trial_without_it_fails_alone(
    tmp_path: Path,
) -> None:
    space = {"hooks.late.reports": {"grid": [True, False, True]}}
    late = {"late": {"type": f"{__name__}:Late"}}
    outcome = sweep(searching(space, metric="val/fid", epochs=2, hooks=late), tmp_path, local=True)
    assert outcome.status == "finished"
    assert outcome.trials["status"].tolist() == ["finished", "failed", "finished"]
    assert outcome.trials["val/fid"].tolist()[::2] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "message", "reports"),
    [
        # Validation comes after every second epoch, so only the second report should have the
        # metric.
        (
            {"metric": "val/acuracy", "validate_every": 2},
            r"'val/acuracy'; available: .*\(did you mean 'val/accuracy'\?\)",
            2,
        ),
        (
            {"metric": "stats/setp_s/p95", "mode": "min"},
            r"'stats/setp_s/p95'; .*\(did you mean 'stats/step_s/p95'\?\)",
            1,
        ),
        ({"task_args": {"val": 0}}, "'val/accuracy'; available: train/loss", 1),
    ],
)
def test_a_missing_metric_ends_the_sweep_with_the_first_report_that_should_have_it(
    tmp_path: Path, fields: dict[str, Any], message: str, reports: int
) -> None:
    with pytest.raises(UsageError, match=f"has the sweep's metric {message}") as caught:
        sweep(
            searching({"optimizer.lr": {"grid": [0.01, 0.1]}}, epochs=4, **fields),
            tmp_path,
            local=True,
        )
    outcome = open_sweep(tmp_path / "points")
    assert (outcome.status, outcome.folder.read_metadata().error) == ("failed", str(caught.value))
    rows = outcome.trials[["status", "reports", "error"]].to_numpy().tolist()
    assert rows == [["failed", reports, str(caught.value)]]


@pytest.mark.parametrize(
    ("settings", "local", "message"),
    [
        ({"scheduler": {"type": "hyperband", "max_t": 4}}, True, "needs concurrent trials"),
        ({"scheduler": "pbt"}, True, "needs concurrent trials"),
        (
            {"search": "optuna"},
            True,
            r"optuna, which is not installed: pip install 'hookyard\[optuna\]'",
        ),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, local: bool, message: str
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    space = {"optimizer.lr": {"loguniform": [0.001, 0.5]}}
    with pytest.raises(UsageError, match=message):
        sweep(
            searching(space, **{"search": "random", "trials": 3, **settings}), tmp_path, local=local
        )
    assert not list(tmp_path.iterdir())


SPACE = {"optimizer.lr": {"choice": [0.1, 0.2]}, "hooks.checkpoint.keep": {"choice": [1, 2]}}


def trial_of(sweep: Experiment, values: dict[str, Any]) -> Experiment:
    assert sweep.sweep is not None
    return make_experiment_from_source(make_trial_source(sweep.source, sweep.sweep, values))


def test_a_trial_s_hooks_have_the_sweep_s_mode_for_its_metric() -> None:
    """But not a trial whose checkpoint uses another metric."""
    space = {"hooks.checkpoint.best": {"choice": ["val/score", "val/accuracy"]}}
    hooks = {
        "checkpoint": {"best": "val/score"},
        "stop": {"type": "early_stopping", "monitor": "val/score"},
    }
    experiment = described(
        epochs=1, hooks=hooks, sweep={"metric": "val/score", "mode": "min", "space": space}
    )
    for best, mode in (("val/score", "min"), ("val/accuracy", None)):
        trial = trial_of(experiment, {"hooks.checkpoint.best": best})
        assert {name: trial.hooks[name]["mode"] for name in hooks} == {
            "checkpoint": mode,
            "stop": "min",
        }


def test_a_sweep_has_its_checkpoint_s_mode() -> None:
    hooks = {"checkpoint": {"best": ["val/loss", "val/score"], "mode": ["min", "max"]}}
    experiment = described(epochs=1, hooks=hooks, sweep={"metric": "val/score", "space": SPACE})
    assert experiment.sweep is not None
    assert experiment.sweep.objectives == [("val/score", "max")]


def test_a_trial_s_own_tables_know_the_sweep_s_mode(tmp_path: Path) -> None:
    """Though its experiment has no sweep any more, and nothing else in it judges by the metric."""
    settings = {"metric": "val/shift", "mode": "min", "space": {"optimizer.lr": {"choice": [0.1]}}}
    experiment = described(epochs=1, sweep=settings)
    assert experiment.sweep is not None
    begin_trial(str(tmp_path), 0, experiment.source, experiment.sweep, {"optimizer.lr": 0.1})
    assert open_run(tmp_path / "trials" / "trial-0000").modes == {"val/shift": "min"}


def test_edited_init_counts_in_a_trial_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a", 1.0), ("b", 2.0)):
        weights = {"weight": torch.full((3, 5), value), "bias": torch.full((3,), value)}
        torch.save(weights, f"{name}.pt")
    changes: dict[str, Any] = {
        "task": "tests.orchestrator.runs.test_start_and_resume:Failing",
        "optimizer": {"type": "SGD", "lr": 0.0},
        "init": {"from": "a.pt"},
    }
    failed = sweep(searching({"seed": {"grid": [1, 2]}}, **changes), tmp_path, local=True)
    assert failed.count_failed_trials() == 2

    Path("mended").touch()
    file = tmp_path / "points/experiment.yaml"
    file.write_text(file.read_text().replace("a.pt", "b.pt"))
    done = resume_sweep(file.parent, failed=True)
    for trial in done.runs:
        assert torch.equal(trial.weights("last")["weight"], torch.full((3, 5), 2.0))
        init = trial.folder.read_metadata().init
        assert init is not None
        assert init.path == f"{tmp_path}/b.pt"


@pytest.mark.parametrize(("checkpoints", "counts"), [([], "b.pt"), (["epoch-0001"], "a.pt")])
def test_edited_init_does_not_count_in_a_trial_with_a_checkpoint(
    checkpoints: list[str], counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.sweeps.begin_trial.list_checkpoints", lambda _: checkpoints)
    for name in ("a.pt", "b.pt"):
        torch.save({"weight": torch.zeros(3, 5), "bias": torch.zeros(3)}, name)
        settings = {"metric": "val/loss", "space": {"optimizer.lr": {"choice": [0.1]}}}
        experiment = described(epochs=1, sweep=settings, init={"from": name})
        assert experiment.sweep is not None
        _, trial = begin_trial(
            str(tmp_path), 0, experiment.source, experiment.sweep, {"optimizer.lr": 0.1}
        )
    init = trial.read_metadata().init
    assert init is not None
    assert init.path == f"{tmp_path}/{counts}"


def test_the_time_of_a_resumed_trial_leaves_out_the_pause(tmp_path: Path) -> None:
    settings = {"metric": "val/loss", "space": {"optimizer.lr": {"choice": [0.1]}}}
    experiment = described(epochs=1, sweep=settings)
    assert experiment.sweep is not None
    begin = partial(begin_trial, str(tmp_path), 0, experiment.source, experiment.sweep)
    _, trial = begin({"optimizer.lr": 0.1})
    first = {"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:10Z"}
    change(trial, status="interrupted", **first)
    begin({"optimizer.lr": 0.1})
    trial.run_file.end("finished")
    wall_s = trial.read_metadata().wall_s
    assert wall_s is not None
    assert 10 <= wall_s < 3600


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"best": "val/accuracy", "mode": "max"},
        {"best": ["val/loss", "val/accuracy"], "mode": ["min", "max"]},
    ],
)
def test_opposite_modes_of_a_metric_are_refused(checkpoint: dict[str, Any]) -> None:
    sweep = {"metric": "val/accuracy", "mode": "min", "space": SPACE}
    with pytest.raises(
        ConfigError,
        match=r"hooks.checkpoint: has mode max for val/accuracy, but sweep has mode min",
    ):
        described(epochs=1, hooks={"checkpoint": checkpoint}, sweep=sweep)
