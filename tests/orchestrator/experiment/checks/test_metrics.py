"""Metrics that no run can report are refused before it begins, as far as they are known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import nn

from hooks import EarlyStopping, Hook, State
from orchestrator import ConfigError, run
from orchestrator.experiment.load import load_checked, load_experiment
from tests.orchestrator.experiment.samples import Line, problems
from tests.tasks import described

HERE = "tests.orchestrator.experiment.checks.test_metrics"


@dataclass
class Measured(Line):
    """A line whose metrics are its loss and a meter."""

    def meters(self) -> Mapping[str, Any]:
        return {"r2": nn.Identity()}


@dataclass
class Patience(EarlyStopping):
    """Stops early."""


@dataclass
class Watches(Hook):
    """Reads a metric, and declares so."""

    monitor: str
    monitors: ClassVar[str] = "monitor"

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None: ...


@dataclass
class Beeps(Hook):
    """Has a parameter `monitor` that names no metric."""

    monitor: str = "the screen"

    def on_start(self, state: State) -> None: ...


@dataclass
class Gives(Hook):
    """Gives what nobody knows of before."""

    def on_phase_end(self, state: State) -> None: ...


def text(task: str, more: str) -> str:
    return f"name: line\ntask: {task}\nepochs: 2\n{more}\n"


SWEEP = "sweep: {{metric: {}, mode: max, space: {{seed: {{choice: [1, 2]}}}}}}"


@pytest.mark.parametrize(
    ("more", "path", "message", "meant"),
    [
        (
            "hooks: {checkpoint: {best: val/r3, mode: max}}",
            "hooks.checkpoint.best",
            "'val/r3' is not a metric of this task; available: val/loss, val/r2",
            "val/r2",
        ),
        (
            "hooks: {stop: {type: early_stopping, monitor: val/los, mode: min}}",
            "hooks.stop.monitor",
            "'val/los' is not a metric of this task",
            "val/loss",
        ),
        (
            "hooks: {early_stopping: {monitor: vall/loss}}",
            "hooks.early_stopping.monitor",
            "'vall/loss' has no phase",
            "val/loss",
        ),
        (
            "hooks: {early_stopping: {monitor: loss}}",
            "hooks.early_stopping.monitor",
            "'loss' has no phase; metrics begin with train/, val/ or test/",
            "val/loss",
        ),
        (
            "hooks: {early_stopping: {monitor: test/loss}}",
            "hooks.early_stopping.monitor",
            "'test/loss' is measured after training",
            None,
        ),
        (
            f"hooks: {{patience: {{type: '{HERE}:Patience', monitor: test/loss}}}}",
            "hooks.patience.monitor",
            "'test/loss' is measured after training",
            None,
        ),
        (
            f"hooks: {{watches: {{type: '{HERE}:Watches', monitor: r2}}}}",
            "hooks.watches.monitor",
            "'r2' has no phase",
            "val/r2",
        ),
        (
            "validate_every: 0\nhooks: {checkpoint: {best: auto}}",
            "hooks.checkpoint.best",
            "'auto' is never measured with validate_every: 0",
            None,
        ),
        (
            "validate_every: 0\n" + SWEEP.format("val/loss"),
            "sweep.metric",
            "'val/loss' is never measured with",
            None,
        ),
        (SWEEP.format("r2"), "sweep.metric", "'r2' has no phase; metrics begin with", "val/r2"),
        (
            SWEEP.format("val/rr2"),
            "sweep.metric",
            "'val/rr2' is not a metric of this task",
            "val/r2",
        ),
    ],
)
def test_impossible_metrics_are_refused_with_their_location(
    file: Path, more: str, path: str, message: str, meant: str | None
) -> None:
    (problem,) = problems(file, text(f"{HERE}:Measured", more))
    assert (problem.path, problem.line) == (path, 4 + more.count("\n"))
    assert problem.message.startswith(message)
    assert problem.suggestion == (meant and f"did you mean '{meant}'?")


@dataclass
class Fast(Measured):
    """Has a meter with the name of a default hook's number."""

    def meters(self) -> Mapping[str, Any]:
        return {"samples_per_s": nn.Identity()}


def test_meters_with_the_name_of_a_hook_s_number_are_refused(file: Path) -> None:
    (problem,) = problems(file, text(f"{HERE}:Fast", ""))
    assert str(problem) == (
        f"{file}:2: task: meters() returns 'samples_per_s', a metric of the hook 'perf_stats';"
        " rename it"
    )


@pytest.mark.parametrize(
    "more",
    [
        "hooks: {checkpoint: {best: [val/r2, val/ema/loss, test/r2], mode: max}, ema: {}}",
        SWEEP.format("train/samples_per_s"),
        SWEEP.format("stats/step_s/p95"),
        f"hooks: {{watches: {{type: '{HERE}:Watches', monitor: test/r2}}}}",
        f"hooks: {{beeps: {{type: '{HERE}:Beeps'}}}}",
        f"hooks: {{beeps: {{type: '{HERE}:Beeps', monitor: a door}}}}",
        # Hooks of one's own may give anything.
        f"hooks: {{gives: {{type: '{HERE}:Gives'}}, checkpoint: {{best: val/fid, mode: min}}}}",
        f"validate_every: 0\nhooks: {{gives: {{type: '{HERE}:Gives'}}}}\n" + SWEEP.format("score"),
        # What is swept decides.
        "sweep: {metric: val/f1, space: {task: {choice: ['tests.tasks:Points']}}}",
    ],
)
def test_possible_metrics_are_accepted(file: Path, more: str) -> None:
    file.write_text(text(f"{HERE}:Measured", more))
    load_experiment(file)


@pytest.mark.parametrize("best", ["val/loss", "auto", "test/loss"])
def test_load_checked_refuses_metrics_of_missing_phases(file: Path, best: str) -> None:
    file.write_text(text(f"{HERE}:Measured", f"hooks: {{checkpoint: {{best: {best}, mode: min}}}}"))
    with pytest.raises(ConfigError) as caught:
        load_checked(file)
    phase = "test" if best == "test/loss" else "val"
    told = (
        f"{file}:4: hooks.checkpoint.best: '{best}' is never measured: "
        f"data() of the task returns train and no {phase}"
    )
    assert str(caught.value) == told


def test_run_refuses_unknown_metrics_before_its_first_iteration(tmp_path: Path) -> None:
    judging = described(task_args={"val": 0}, hooks={"early_stopping": {"monitor": "val/accuracy"}})
    with pytest.raises(
        ConfigError,
        match=r"monitor: 'val/accuracy' is never measured: data\(\) of the task returns train and no val",
    ):
        run(judging, tmp_path, local=True)
    assert not list(tmp_path.glob("points/stats/**/rows-*"))
