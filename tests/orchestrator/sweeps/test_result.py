from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import UsageError, open_run, open_sweep, run, sweep
from orchestrator.runs.folder import RunFolder
from orchestrator.sweeps.result import Sweep
from tests.tasks import described


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": {"optimizer.lr": {"grid": [0.01, 0.2]}}}
    return sweep(described(sweep=settings), tmp_path_factory.mktemp("runs"), local=True)


def crafted(root: Path, mode: str, **accuracies: list[float | None]) -> Sweep:
    """A sweep whose trials reported the given accuracies."""
    folder = RunFolder.create(root, "sweep", "", {"sweep": {"metric": "val/accuracy", "mode": mode, "trials": len(accuracies)}})
    for name, values in accuracies.items():
        trial = RunFolder.create(f"{folder}/trials", name, "hooks: {}\n", {"values": {"hooks.ema": {"decay": 0.5}}})
        trial.begin_attempt(None, None, {})
        for step, value in enumerate(values, start=1):
            trial.append_metrics({"attempt": 0, "epoch": step - 1, "step": step, "iteration": step, "val/accuracy": value, "val/loss": 1 / step})
    return Sweep(folder)


def test_a_sweep_is_opened_again(outcome: Sweep) -> None:
    again = open_sweep(outcome.path)
    assert (again.name, again.status, again.objective) == ("points", "finished", ("val/accuracy", "max"))
    assert repr(again) == f"Sweep({outcome.path!r}, status='finished')"
    assert again.trials["val/accuracy"].tolist() == outcome.trials["val/accuracy"].tolist()
    assert again.best.path == outcome.best.path


def test_the_table_of_trials_says_what_each_cost(outcome: Sweep) -> None:
    for name, trial in outcome.trials.iterrows():
        stats = open_run(f"{outcome.path}/trials/{name}").stats
        training = stats[stats["phase"] == "train"]
        assert trial["step_s"] == training["step_s"].median()
        assert trial["train_s"] == pytest.approx(training["step_s"].sum())
        assert trial["peak_rss_bytes"] == stats["rss_bytes"].max()
        assert (trial["ranks"], trial["reports"]) == (1, 2)


def test_the_stats_of_all_trials_have_the_trial_first(outcome: Sweep) -> None:
    stats = outcome.stats
    assert list(stats.columns[:7]) == ["trial", "rank", "node", "phase", "epoch", "iteration", "step"]
    for trial in outcome.runs:
        own = stats[stats["trial"] == trial.name]
        assert own["loss"].tolist() == trial.stats["loss"].tolist()
    assert len(stats) == sum(len(trial.stats) for trial in outcome.runs)


def test_a_single_run_is_no_sweep(tmp_path: Path) -> None:
    done = run(described(epochs=1), tmp_path, local=True)
    with pytest.raises(UsageError, match="is a single run, not a sweep; open it with open_run"):
        open_sweep(done.path)
    with pytest.raises(UsageError, match="is no run"):
        open_sweep(tmp_path / "nothing")


@pytest.mark.parametrize(("mode", "best", "value", "epoch"), [("max", "b", 0.9, 1), ("min", "c", 0.1, 0)])
def test_a_trial_is_judged_by_its_best_report_not_its_last(tmp_path: Path, mode: str, best: str, value: float, epoch: int) -> None:
    made = crafted(tmp_path, mode, a=[0.5, 0.6, 0.7], b=[0.3, 0.9, 0.2], c=[0.1, 0.8])
    assert made.best.name == best
    row = made.trials.loc[best]
    assert (row["val/accuracy"], row["epoch"]) == (value, epoch)
    assert row["val/loss"] == 1 / (epoch + 1)
    assert row["last/val/accuracy"] == (0.2 if best == "b" else 0.8)


def test_values_that_are_no_numbers_are_not_judged(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[float("nan"), 0.2], b=[None, float("nan")], c=[])
    assert made.best.name == "a"
    assert made.trials["val/accuracy"].isna().tolist() == [False, True, True]
    assert made.trials["reports"].tolist() == [2, 2, 0]


def test_without_a_report_there_is_no_best(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[])
    with pytest.raises(UsageError, match=r"no trial of .* has reported val/accuracy yet"):
        _ = made.best


def test_a_value_that_is_a_mapping_stands_as_text(tmp_path: Path) -> None:
    cell: Any = crafted(tmp_path, "max", a=[0.5]).trials["config/hooks.ema"].item()
    assert json.loads(cell) == {"decay": 0.5}


def test_a_sweep_just_begun_has_empty_tables(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max")
    assert (len(made.trials), len(made.stats), made.runs) == (0, 0, [])
    assert made.status == "running"
