"""Repeats over any path, such as the folds of a cross-validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Lt
from torch.utils.data import Dataset, Subset
from typer.testing import CliRunner

from orchestrator import ConfigError, Sweep, UsageError, resume_sweep, run, sweep
from orchestrator.cli import app
from orchestrator.experiment.load import make_experiment_from_source
from orchestrator.sweeps.results.comparison import compare_sweeps
from tests.orchestrator.report.reading import make_sweep_page
from tests.orchestrator.runs.written import change
from tests.orchestrator.sweeps.test_in_process import searching
from tests.tasks import Points, PointSet, described

FOLDS = 3
TASK = f"{__name__}:Folded"
RATES = {"optimizer.lr": {"grid": [0.01, 0.5]}}
REPEATS = {"task_args.fold": [2, 0, 1]}


@dataclass
class Folded(Points):
    """Validates on every third of 40 points, and trains on the others."""

    fold: Annotated[int, Ge(0), Lt(FOLDS)] = 0

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = PointSet(40, noisy=False, seed=0)
        is_val = [index % FOLDS == self.fold for index in range(len(points))]
        return {
            "train": Subset(points, [index for index in range(40) if not is_val[index]]),
            "val": Subset(points, [index for index in range(40) if is_val[index]]),
        }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    experiment = searching(RATES, task=TASK, repeats=REPEATS)
    return sweep(experiment, tmp_path_factory.mktemp("sweeps"), "folds", local=True)


def test_each_trial_is_the_run_of_its_fold(done: Sweep, tmp_path: Path) -> None:
    table = done.trials
    assert table["config/optimizer.lr"].tolist() == [0.01] * 3 + [0.5] * 3
    assert table["config/task_args.fold"].tolist() == [2, 0, 1] * 2
    assert table["configuration"].tolist() == [0] * 3 + [1] * 3
    assert [trial.config["seed"] for trial in done.runs] == [0] * 6
    optimizer = {"type": "SGD", "lr": 0.5, "momentum": 0.9}
    alone = described(task=TASK, task_args={"fold": 0}, epochs=1, optimizer=optimizer)
    expected = run(alone, tmp_path, "alone", local=True)
    assert done.trial(4).stats["loss"].tolist() == expected.stats["loss"].tolist()


def test_mean_and_spread_are_those_over_the_folds(done: Sweep) -> None:
    accuracies = done.trials["val/accuracy"].tolist()
    configurations = done.configurations
    for number, values in enumerate((accuracies[:3], accuracies[3:])):
        row = configurations.loc[number]
        assert row["n"] == FOLDS
        assert row["mean"] == pytest.approx(mean(values))
        assert row["std"] == pytest.approx(stdev(values))
        # Student's t with 2 degrees of freedom: 4.3027 standard errors.
        half_width = 4.302652729911275 * stdev(values) / 3**0.5
        assert row["high"] - row["mean"] == pytest.approx(half_width)
    assert "config/task_args.fold" not in configurations
    best = configurations.index[0]
    assert done.best.config["optimizer"]["lr"] == [0.01, 0.5][best]
    shown = CliRunner().invoke(app, ["show", str(done.path)]).stdout
    assert f"Best configuration: {best} with val/accuracy" in shown
    assert (
        "task_args.fold"
        not in make_sweep_page(done).partition("Configurations</h2>")[2].partition("</table>")[0]
    )


def test_sweeps_are_compared_fold_by_fold(done: Sweep, tmp_path: Path) -> None:
    experiment = searching(RATES, task=TASK, repeats=REPEATS, batch_size=4)
    other = sweep(experiment, tmp_path, "smaller", local=True)
    single = sweep(searching(RATES, task=TASK), tmp_path, "single", local=True)
    compared = compare_sweeps([done, other, single]).same_values["val/accuracy"]
    assert compared.pairs == [None, 6, 2]
    differences = other.trials["val/accuracy"] - done.trials["val/accuracy"]
    means = done.trials.groupby("configuration")["val/accuracy"].mean().to_numpy()
    expected = single.trials["val/accuracy"].to_numpy() - means
    assert compared.values[1:] == pytest.approx([differences.mean(), expected.mean()])


@pytest.mark.parametrize("scheduler", ["asha", "median", {"type": "race", "level": 0.4}])
def test_schedulers_take_folds(tmp_path: Path, scheduler: Any) -> None:
    """A race skips the last folds of the loser."""
    experiment = searching(RATES, task=TASK, repeats=REPEATS, scheduler=scheduler, epochs=2)
    outcome = sweep(experiment, tmp_path, local=True)
    folds = outcome.trials.groupby("configuration")["config/task_args.fold"].agg(list)
    assert all(tried == [2, 0, 1][: len(tried)] for tried in folds)
    assert sorted(map(len, folds)) == [1 if "race" in str(scheduler) else 3, 3]
    assert outcome.configurations["n"].max() == FOLDS


def test_optuna_learns_from_the_mean_over_folds(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"loguniform": [0.001, 0.5]}}
    search = {"type": "optuna", "sampler": "RandomSampler"}
    experiment = searching(space, task=TASK, repeats=REPEATS, search=search, trials=6)
    trials = sweep(experiment, tmp_path, local=True).trials
    assert trials["config/task_args.fold"].tolist() == [2, 0, 1] * 2
    assert trials.groupby("configuration")["config/optimizer.lr"].nunique().tolist() == [1, 1]


def test_plan_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "folds.yaml").write_text(
        f"name: folds\ntask: {TASK}\nepochs: 1\noptimizer: {{type: SGD, lr: 0.1}}\n"
        "sweep: {metric: val/accuracy, repeats: {task_args.fold: [0, 1, 2]}, space: {batch_size:"
        " {grid: [4, 8]}}}\n"
    )
    planned = CliRunner().invoke(app, ["sweep", str(tmp_path / "folds.yaml"), "--plan"])
    assert "6, 3 values of task_args.fold per configuration" in planned.stdout


def test_override_of_the_path_is_refused() -> None:
    source = searching(RATES, task=TASK, repeats=REPEATS).source
    with pytest.raises(ConfigError, match=r"task_args\.fold: has no effect: sweep.repeats sets it"):
        make_experiment_from_source(source.with_values({"task_args.fold": 1}))


@pytest.mark.parametrize(
    ("repeats", "path", "values"),
    [(3, "seed", [0, 1, 2]), (REPEATS, "task_args.fold", [2, 0, 1])],
)
def test_a_sweep_of_repeats_alone_resumes(
    tmp_path: Path, repeats: Any, path: str, values: list[int]
) -> None:
    experiment = searching({}, task=TASK, repeats=repeats, search="random")
    uninterrupted = sweep(experiment, tmp_path, local=True)
    expected = uninterrupted.trials["val/loss"].tolist()
    assert len({*expected}) == 3
    # The driver dies after the first trial.
    change(uninterrupted.folder, status="interrupted", ended=None)
    for name in ("trial-0001", "trial-0002"):
        uninterrupted.trial(0).folder.storage.parent.delete(name)

    resumed = resume_sweep(uninterrupted.path)
    assert resumed.status == "finished"
    assert resumed.trials[f"config/{path}"].tolist() == values
    assert resumed.trials["val/loss"].tolist() == expected
    assert resumed.configurations["n"].tolist() == [3]
    with pytest.raises(
        UsageError, match=r" has 1 configuration with val/accuracy; parameter importance needs 10"
    ):
        resumed.importance()
