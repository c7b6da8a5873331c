"""Sweeps as studies of Optuna, read back by Optuna itself."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import sweep
from orchestrator.cli import app
from orchestrator.errors import UsageError
from orchestrator.sweeps.results.optuna_study import export_study
from orchestrator.sweeps.results.result import Sweep
from tests.tasks import described

optuna = pytest.importorskip("optuna")

SPACE = {
    "optimizer.lr": {"loguniform": [0.001, 0.3]},
    "hooks.ema": {"choice": [None, {"decay": 0.5}]},
    "batch_size": {"randint": [4, 9]},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "trials": 4,
        "space": SPACE,
        "constraints": {"val/loss": "<= 100", "process_peak_rss_bytes": "<= 1 MiB"},
    }
    return sweep(described(sweep=settings), tmp_path_factory.mktemp("runs"), local=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def test_optuna_reads_values_metrics_and_curves(done: Sweep, url: str) -> None:
    assert export_study(done, url) == 4
    study = optuna.load_study(study_name=done.name, storage=url)
    table = done.trials
    assert study.metric_names == ["val/accuracy"]
    assert study.direction.name == "MAXIMIZE"
    for trial, (name, row) in zip(study.trials, table.iterrows(), strict=True):
        assert trial.value == row["val/accuracy"]
        assert trial.params["optimizer.lr"] == row["config/optimizer.lr"]
        assert trial.params["batch_size"] == row["config/batch_size"]
        assert trial.params["hooks.ema"] in (None, '{"decay": 0.5}')
        assert trial.user_attrs["trial"] == name
        assert trial.user_attrs["total_s"] == row["total_s"]
        reports = done.trial(str(name)).metrics["val/accuracy"]
        assert [*trial.intermediate_values.values()] == reports.tolist()
        assert trial.constraints["val/loss"] == pytest.approx(row["val/loss"] - 100)
        assert trial.constraints["process_peak_rss_bytes"] > 0
        assert trial.datetime_start <= trial.datetime_complete <= datetime.now()


def test_command_names_the_dashboard(done: Sweep, url: str) -> None:
    result = CliRunner().invoke(app, ["export-optuna", str(done.path), url])
    assert result.exit_code == 0
    assert f"optuna-dashboard {url}" in result.output


def test_study_of_that_name_is_not_overwritten(done: Sweep, url: str) -> None:
    export_study(done, url)
    with pytest.raises(UsageError, match=r"has a study 'points' already.*optuna delete-study"):
        export_study(done, url)


@pytest.mark.parametrize(
    "wrong",
    ["nothing://AKIA:hunter2@host/x", "sqlite:////nowhere/at/all.db", "study.db"],
)
def test_storage_that_cannot_be_opened_is_an_error(done: Sweep, wrong: str) -> None:
    with pytest.raises(UsageError, match="Optuna cannot open") as told:
        export_study(done, wrong)
    assert "hunter2" not in str(told.value)


def test_failed_trials_and_several_metrics_are_exported(tmp_path: Path, url: str) -> None:
    settings: dict[str, Any] = {
        "metric": ["val/accuracy", "val/loss"],
        "search": "optuna",
        "trials": 2,
        "space": {"task_args.fails": {"choice": [False, True]}},
        "points": [{"task_args.fails": False}, {"task_args.fails": True}],
    }
    result = sweep(described(sweep=settings), tmp_path, local=True)
    export_study(result, url)
    study = optuna.load_study(study_name=result.name, storage=url)
    by_status = {trial.user_attrs["status"]: trial for trial in study.trials}
    assert by_status["failed"].state.name == "FAIL"
    good = by_status["finished"]
    row = result.trials.loc[good.user_attrs["trial"]]
    assert good.values == [row["val/accuracy"], row["val/loss"]]
