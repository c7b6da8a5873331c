"""The tables of a sweep, its best trial, and its trials as runs."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from orchestrator import UsageError, open_run, open_sweep, sweep
from orchestrator.cli import app
from orchestrator.disk.attempts import rank_folder
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.sweeps.results.comparison import compare_sweeps
from orchestrator.sweeps.results.ranking import sort_best_first
from orchestrator.sweeps.results.result import Sweep
from orchestrator.terminal.sweep_status import LiveSweep
from tests.orchestrator.report.reading import charts_of, main_of, make_sweep_page
from tests.orchestrator.runs.written import change, new_run
from tests.orchestrator.sweeps.results.test_comparison import write_sweep
from tests.tasks import described


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    space = {"optimizer.lr": {"grid": [0.01, 0.2]}}
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    return sweep(described(sweep=settings), tmp_path_factory.mktemp("runs"), local=True)


def crafted(root: Path, mode: str, **accuracies: list[float | None]) -> Sweep:
    """A sweep whose trials reported these accuracies."""
    folder = new_run(
        root,
        "sweep",
        "hooks: {}\n",
        sweep={"objectives": [["val/accuracy", mode]], "trials": len(accuracies)},
    )
    for name, values in accuracies.items():
        trial = new_run(
            f"{folder}/trials", name, "hooks: {}\n", values={"hooks.ema": {"decay": 0.5}}
        )
        trial.begin_attempt()
        for step, value in enumerate(values, start=1):
            counters = {"attempt": 0, "epoch": step - 1, "step": step, "iteration": step}
            trial.append_report({**counters, "val/accuracy": value, "val/loss": 1 / step})
    return Sweep(folder)


def test_a_sweep_can_be_opened_again(outcome: Sweep) -> None:
    again = open_sweep(outcome.path)
    assert (again.name, again.status, again.objective) == (
        "points",
        "finished",
        ("val/accuracy", "max"),
    )
    assert repr(again) == f"Sweep({str(outcome.path)!r}, status='finished')"
    assert again.trials["val/accuracy"].tolist() == outcome.trials["val/accuracy"].tolist()
    assert again.best.path == outcome.best.path
    assert "2 finished" in again._repr_html_()
    with pytest.raises(
        UsageError, match=r"is a sweep, not a single run; its trials are runs: .*/trials/trial-0000"
    ):
        open_run(outcome.path)
    with pytest.raises(UsageError, match="is a single run, not a sweep; open it with open_run"):
        open_sweep(outcome.trial(1).path)


def test_the_table_of_trials_has_the_cost_of_each(outcome: Sweep) -> None:
    for name, trial in outcome.trials.iterrows():
        stats = open_run(f"{outcome.path}/trials/{name}").stats
        training = stats[stats["phase"] == "train"]
        assert trial["step_s"] == training["step_s"].median()
        assert trial["train_s"] == pytest.approx(training["step_s"].sum())
        assert trial["process_peak_rss_bytes"] == stats["rss_bytes"].max()
        assert trial["data_wait_share"] == pytest.approx(
            training["data_wait_s"].sum() / training["step_s"].sum()
        )
        assert trial["samples_per_s"] == pytest.approx(2 * 52 / training["step_s"].sum())
        assert (trial["ranks"], trial["reports"]) == (1, 2)


def test_metrics_are_the_reports_of_all_trials_with_their_values(outcome: Sweep) -> None:
    metrics = outcome.metrics
    assert list(metrics.columns[:2]) == ["trial", "config/optimizer.lr"]
    assert metrics.groupby("trial", observed=True)[
        "config/optimizer.lr"
    ].unique().explode().to_dict() == {
        "trial-0000": 0.01,
        "trial-0001": 0.2,
    }
    for trial in outcome.runs:
        own = metrics[metrics["trial"] == trial.name].drop(columns=["trial", "config/optimizer.lr"])
        pd.testing.assert_frame_equal(own.reset_index(drop=True), trial.metrics)


def test_metrics_of_trials_with_different_reports_share_a_table(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", one=[0.5, 0.75], two=[], three=[0.25])
    change(made.trial("three").folder, values={"optimizer.lr": 0.1, "hooks.ema": None})
    made.trial("two").folder.storage.write("run.json", "{")
    metrics = made.metrics
    assert list(metrics["trial"]) == ["one", "one", "three"]
    assert metrics["val/accuracy"].tolist() == [0.5, 0.75, 0.25]
    assert metrics["config/hooks.ema"].tolist() == ['{"decay": 0.5}'] * 2 + ["null"]
    assert metrics["config/optimizer.lr"].dropna().tolist() == [0.1]
    (tmp_path / "empty").mkdir()
    assert list(crafted(tmp_path / "empty", "max").metrics) == ["trial"]


def test_the_stats_of_all_trials_have_the_trial_first(outcome: Sweep) -> None:
    stats = outcome.stats
    assert list(stats.columns[:7]) == [
        "trial",
        "rank",
        "node",
        "phase",
        "epoch",
        "iteration",
        "step",
    ]
    for trial in outcome.runs:
        own = stats[stats["trial"] == trial.name]
        assert own["loss"].tolist() == trial.stats["loss"].tolist()
    assert len(stats) == sum(len(trial.stats) for trial in outcome.runs)


def test_summaries_are_those_of_the_trials(outcome: Sweep) -> None:
    by_trial = outcome.summary()
    by_rank = outcome.summary("rank", ["loss"])
    by_phase = outcome.summary("phase")
    for trial in outcome.runs:
        training = trial.load_stats(where="phase == 'train'")
        assert by_trial.loc[trial.name, "rows"] == len(training)
        assert by_trial.loc[trial.name, "step_s"] == training["step_s"].median()
        assert by_trial.loc[trial.name, "rss_bytes"] == training["rss_bytes"].max()
        assert by_rank.loc[(trial.name, 0), "loss"] == training["loss"].median()
        assert by_phase.loc[trial.name].equals(trial.summary("phase"))
    with pytest.raises(UsageError, match=r"by must be 'trial', 'rank', .*, got 'host'"):
        outcome.summary("host")
    with pytest.raises(UsageError, match="no column 'los'"):
        outcome.summary(columns=["los"])


def test_rows_are_read_by_trial_column_and_condition(outcome: Sweep) -> None:
    stats = outcome.stats
    some = outcome.load_stats(
        trials=[1], columns=["loss", "rank"], where="phase == 'train' and epoch == 1"
    )
    expected = stats.query("trial == 'trial-0001' and phase == 'train' and epoch == 1")
    assert [*some.columns] == ["trial", "loss", "rank"]
    assert some["loss"].tolist() == expected["loss"].tolist()
    assert (len(some), len(outcome.load_stats(trials=[]))) == (7, 0)
    for where in ("epoch == 1", "epoch > 100"):
        asked = outcome.load_stats(columns=["loss", "trial"], where=where)
        assert [*asked.columns] == ["trial", "loss"]
    assert len(outcome.load_stats(["trial-0000", 1])) == len(stats)
    arguments = ["--by", "row", "--columns", "trial,loss", "--where", "phase == 'train'", "--json"]
    rows = json.loads(CliRunner().invoke(app, ["stats", str(outcome.path), *arguments]).stdout)
    assert [row["loss"] for row in rows] == pytest.approx(
        stats.query("phase == 'train'")["loss"].tolist()
    )


def test_a_column_that_one_trial_lacks_is_empty_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"hooks.gradient_clip": {"grid": [None, {"max_norm": 1.0}]}}
    settings = {"metric": "val/loss", "search": "grid", "space": space}
    made = sweep(described(epochs=1, sweep=settings), tmp_path, local=True)
    norms = made.load_stats(columns=["grad_norm"], where="phase == 'train'")
    assert norms.groupby("trial", observed=True)["grad_norm"].count().tolist() == [0, 7]
    assert norms.groupby("trial", observed=True).size().tolist() == [7, 7]
    assert made.summary(columns=["grad_norm"])["grad_norm"].isna().tolist() == [True, False]
    assert set(made.load_stats(columns=["loss"], where="grad_norm > 0")["trial"]) == {"trial-0001"}
    assert "left out 1 of 2 trials: there is no column 'grad_norm'" in caplog.text
    with pytest.raises(UsageError, match="there is no column 'grad_nrm'; did you mean 'grad_norm'"):
        made.load_stats(columns=["grad_nrm"])
    with pytest.raises(UsageError, match="no_column"):
        made.load_stats(where="no_column > 0")


def test_column_with_text_in_one_trial_and_numbers_in_another_is_text(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", **{f"trial-000{number}": [0.5] for number in range(3)})
    for number, value in enumerate(("warm 1.0", 1.5, 1.0)):
        identity = {"rank": 0, "node": "a", "attempt": 0}
        recorder = Recorder(made.trial(number).folder.storage, "stats/attempt=0/rank=0", identity)
        recorder.append({"phase": "train", "epoch": 0, "iteration": 1, "step": 1, "x": value})
        recorder.close()
    assert made.stats["x"].tolist() == ["warm 1.0", "1.5", "1"]


# Reports and ends of trials


@pytest.mark.parametrize(
    ("mode", "best", "value", "epoch"), [("max", "b", 0.9, 1), ("min", "c", 0.1, 0)]
)
def test_a_trial_is_compared_by_its_best_report_not_its_last(
    tmp_path: Path, mode: str, best: str, value: float, epoch: int
) -> None:
    made = crafted(tmp_path, mode, a=[0.5, 0.6, 0.7], b=[0.3, 0.9, 0.2], c=[0.1, 0.8])
    made.trial("a").folder.append_report(
        {"attempt": 0, "epoch": 3, "step": 4, "iteration": 4, "test/accuracy": 0.25}
    )
    assert made.best.name == best
    row = made.trials.loc[best]
    assert (row["val/accuracy"], row["epoch"]) == (value, epoch)
    assert row["val/loss"] == 1 / (epoch + 1)
    assert row["last/val/accuracy"] == (0.2 if best == "b" else 0.8)
    assert made.trials.loc["a", "last/test/accuracy"] == 0.25


def test_large_integers_of_some_trials_are_exact(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", **{"trial-0000": [0.5], "trial-0001": [0.7]})
    change(made.trial(0).folder, values={"task_args.id": 2**53 + 1})
    counters = {"attempt": 0, "epoch": 1, "step": 2, "iteration": 2}
    made.trial(1).folder.append_report({**counters, "val/accuracy": 0.9, "val/seen": 2**63 + 1})
    trials = made.trials
    assert trials["config/task_args.id"].dropna().tolist() == [2**53 + 1]
    assert trials["val/seen"].dropna().tolist() == [2**63 + 1]


@pytest.mark.parametrize("large", [2**53 + 1, 2**63 + 1])
def test_rows_of_trials_have_decimals_where_those_of_a_run_do(tmp_path: Path, large: int) -> None:
    made = crafted(tmp_path, "max", **{"trial-0000": [0.5], "trial-0001": [0.7]})
    for number, seen in enumerate([[-1, large], [5, None]]):
        trial = made.trial(number).folder
        recorder = Recorder(trial.storage, rank_folder(0, 0), {"rank": 0, "attempt": 0})
        for iteration, value in enumerate(seen, start=1):
            row = {"phase": "train", "epoch": 0, "iteration": iteration, "step": iteration}
            recorder.append({**row, "node": "here", **({} if value is None else {"seen": value})})
        recorder.close()
    assert made.stats["seen"].dropna().tolist() == [-1, large, 5]


def test_report_that_lacks_one_of_the_metrics_is_ignored(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[0.5])
    modes = {"val/accuracy": "max", "val/loss": "min"}
    change(made.folder, sweep={"objectives": [*modes.items()], "trials": 1})
    trial = made.trial("a").folder
    change(trial, modes=modes)
    trial.append_report({"attempt": 0, "epoch": 1, "step": 2, "iteration": 2, "val/accuracy": 0.9})
    best = made.best.best
    (view,) = LiveSweep(made.folder).read_view().trials
    assert [best and best.value, view.best, Sweep(made.folder).trials.loc["a", "val/accuracy"]] == [
        0.5
    ] * 3


def test_a_sweep_without_a_report_has_no_best(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no trial has reported val/accuracy$"):
        _ = crafted(tmp_path, "max", a=[]).best
    new = crafted(tmp_path / "new", "max")
    assert (len(new.trials), len(new.stats), new.runs, new.status) == (0, 0, [], "running")
    assert "no trial has begun yet" in new._repr_html_()


@pytest.mark.parametrize("repeats", [1, 2])
def test_failed_trial_is_never_the_best(tmp_path: Path, repeats: int) -> None:
    made = crafted(tmp_path, "max", a=[0.3], b=[0.9], c=[0.2])
    change(
        made.folder,
        sweep={"objectives": [["val/accuracy", "max"]], "trials": 3, "repeats": repeats},
    )
    for number, (trial, status) in enumerate(
        zip(made.runs, ("finished", "failed", "running"), strict=True)
    ):
        change(trial.folder, status=status, configuration=number if repeats > 1 else None)
    made = Sweep(made.folder)
    assert made.best.name == "a"
    assert [*made.pareto().index] == ["a"]
    assert LiveSweep(made.folder).read_view().best == "a"
    shown = CliRunner().invoke(app, ["show", str(made.path), "--json"])
    assert json.loads(shown.stdout)["best"].endswith("trials/a")
    assert 'href="#a"' in make_sweep_page(made)


def test_sweep_whose_trials_all_failed_has_no_best(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[0.3], b=[0.9])
    change(made.folder, sweep={"objectives": [["val/accuracy", "max"]], "trials": 2, "repeats": 2})
    for number, trial in enumerate(made.runs):
        change(trial.folder, status="failed", configuration=number)
    made = Sweep(made.folder)
    with pytest.raises(UsageError, match="each trial that reported val/accuracy failed"):
        _ = made.best
    assert made.pareto().empty
    assert LiveSweep(made.folder).read_view().best is None
    assert compare_sweeps([made, made]).chosen["best trial"] == [None, None]
    shown = CliRunner().invoke(app, ["show", str(made.path)]).stdout
    assert "no best trial: each trial that reported val/accuracy failed" in shown
    assert "There is no best checkpoint" in make_sweep_page(made)


def test_the_row_of_a_trial_has_its_end_time_and_values(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[0.3], b=[0.2], c=[])
    times = {"started": "2026-01-31T23:59:30Z", "ended": "2026-02-01T00:01:00Z"}
    a, b, _ = (run.folder for run in made.runs)
    change(
        a,
        status="stopped",
        stopped=["it is good", "it is late"],
        values={"hooks.ema": None, "task_args.kind": "null"},
        **times,
    )
    set_back = {
        "started": times["ended"],
        "ended": times["started"],
    }  # the clock was, as the trial ran
    change(
        b,
        status="failed",
        error="it broke",
        values={"hooks.ema": {}, "hooks.ema.decay": 0.5},
        **set_back,
    )
    table = made.trials
    assert table.loc["a", "stopped"] == "it is good; it is late"
    assert table["stopped"].isna().tolist() == [False, True, True]
    assert table.loc["b", "error"] == "it broke"
    assert table["total_s"].tolist()[:2] == [90, 0]
    assert table["total_s"].isna().tolist() == [False, False, True]
    assert table["config/hooks.ema"].tolist() == ["null", "{}", '{"decay": 0.5}']
    assert table["config/hooks.ema.decay"].isna().tolist() == [True, False, True]
    assert table.loc["a", "config/task_args.kind"] == '"null"'
    assert (table.loc["c", "reports"], table.loc["c", "status"]) == (0, "running")


def test_trials_can_be_compared_by_a_statistic_of_their_rows(tmp_path: Path) -> None:
    """The phase itself does not report the largest loss."""
    space = {"optimizer.lr": {"grid": [0.001, 0.3]}}
    settings = {
        "metric": "stats/loss/max",
        "mode": "min",
        "search": "grid",
        "space": space,
        "stop": {"max_reports": 2},
    }
    made = sweep(described(epochs=4, sweep=settings), tmp_path, local=True)
    for trial in made.runs:
        losses = trial.stats.query("phase == 'train'").groupby("epoch")["loss"].max()
        assert trial.metrics["stats/loss/max"].tolist() == losses.tolist()
        assert made.trials.loc[trial.name, "stats/loss/max"] == losses.min()
        assert len(losses) == 2
    assert made.experiment(0).hooks["row_stats"] == {"type": "row_stats", "report": ["loss/max"]}


# One trial


def test_a_trial_is_a_run_and_an_experiment_by_number_and_name(outcome: Sweep) -> None:
    assert (
        outcome.trial(1).path
        == outcome.trial("trial-0001").path
        == Path(outcome.path, "trials/trial-0001")
    )
    with pytest.raises(UsageError, match="has no trial 'trial-0007'"):
        outcome.trial(7)
    for name in ("..", ".", "", "trial-0000/.."):
        with pytest.raises(UsageError, match="it has trial-0000 to trial-0001, and best"):
            outcome.trial(name)
    assert outcome.trial(np.int64(1)).name == "trial-0001"
    experiment = outcome.experiment(1)
    assert (experiment.name, experiment.sweep) == ("points-trial-0001", None)


# Pareto front, importance and the best trial


def test_the_front_is_of_the_sweep_s_metrics_and_of_any_column(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", a=[0.9], b=[0.8, 0.1], c=[0.9, 0.1], d=[])
    assert [*made.pareto().index] == ["a", "c"]
    assert [*made.pareto("val/accuracy", "reports", modes={"reports": "max"}).index] == ["c"]
    with pytest.raises(UsageError, match="there is no column 'val/acuracy'"):
        made.pareto("val/acuracy", "reports")
    with pytest.raises(UsageError, match="the mode of reports is unknown"):
        made.pareto("val/accuracy", "reports")
    with pytest.raises(
        UsageError, match="there is no column 'val/acuracy'; did you mean 'val/accuracy'"
    ):
        made.pareto("val/acuracy", modes={"val/acuracy": "max"})
    with pytest.raises(UsageError, match="status has values that are not numbers"):
        made.pareto("val/accuracy", "status", modes={"status": "max"})
    assert crafted(tmp_path / "new", "max", a=[]).pareto().empty
    with pytest.raises(UsageError, match="there is no column 'val/accuracy'"):
        crafted(tmp_path / "empty", "max").pareto()


def test_importance_needs_ten_trials(tmp_path: Path) -> None:
    made = crafted(tmp_path, "max", **{f"t{index}": [index / 10] for index in range(10)}, none=[])
    for index, trial in enumerate(made.runs[1:]):
        change(trial.folder, values={"optimizer.lr": index / 100, "seed": index % 2})
        counters = {"attempt": 0, "epoch": 9, "step": 9, "iteration": 9}
        trial.folder.append_report({**counters, "val/accuracy": 2 + index, "val/score": index})
    table = made.importance_table()
    assert table["importance"].idxmax() == made.importance("val/score").idxmax() == "optimizer.lr"
    assert (table["std_error"] >= 0).all()
    with pytest.raises(
        UsageError, match=r" has 1 trial with val/accuracy; parameter importance needs 10"
    ):
        crafted(tmp_path / "few", "max", a=[0.5]).importance()


def test_first_of_equal_trials_is_the_best_everywhere(tmp_path: Path) -> None:
    """pandas sorts more than sixteen rows with another algorithm."""
    tied = {f"trial-{number:04d}": [0.5 if number % 3 else 0.75] for number in range(17)}
    outcome = crafted(tmp_path, "min", **tied)
    for trial in outcome.runs:
        trial.folder.run_file.end("finished")
    shown = CliRunner().invoke(app, ["show", str(outcome.path)]).stdout.splitlines()
    first = {
        outcome.best.name,
        next(line for line in shown if line.startswith("trial-")).split()[0],
        next(line for line in shown if line.startswith("Best: ")).split()[1].rstrip(","),
        outcome.pareto("val/accuracy", "val/loss").index[0],
        sort_best_first(outcome.trials, dict(outcome.objectives)).index[0],
        LiveSweep(outcome.folder).read_view().best,
        charts_of(main_of(make_sweep_page(outcome)))["Values and metrics"]["data"][-1]["name"],
    }
    assert first == {"trial-0001"}


def test_trial_that_breaks_a_constraint_is_best_nowhere(tmp_path: Path) -> None:
    """Trial 2 is the most accurate, but its loss is too high."""
    made = crafted(
        tmp_path, "max", **{f"trial-{n:04d}": [v] for n, v in enumerate([0.5, 0.7, 0.9])}
    )
    for number, loss in enumerate([0.3, 0.4, 0.8]):
        trial = made.trial(number).folder
        counters = {"attempt": 0, "epoch": 1, "step": 2, "iteration": 2}
        trial.append_report({**counters, "val/accuracy": 0.91 + number / 100, "val/loss": loss})
        trial.run_file.end("finished")
    change(
        made.folder,
        sweep={
            "objectives": [["val/accuracy", "max"]],
            "trials": 3,
            "constraints": {"val/loss": "<= 0.5"},
        },
    )
    made.folder.run_file.end("finished")
    made = Sweep(made.folder)

    assert made.trials["infeasible"].isna().tolist() == [True, True, False]
    assert made.trials["infeasible"].iloc[2] == "val/loss is 0.8, not <= 0.5"
    shown = CliRunner().invoke(app, ["show", str(made.path)]).stdout.splitlines()
    best = {
        made.best.name,
        next(line for line in shown if line.startswith("Best: ")).split()[1].rstrip(","),
        made.pareto(
            "val/accuracy", "step_s" if "step_s" in made.trials else "epoch", modes={"epoch": "max"}
        ).index[0],
        sort_best_first(made.trials, dict(made.objectives)).index[0],
        LiveSweep(made.folder).read_view().best,
    }
    assert best == {"trial-0001"}
    assert compare_sweeps([made, made]).metrics["val/accuracy best"].values == [0.92] * 2


def test_repeats_of_a_configuration_that_breaks_a_constraint_once_do_not_count(
    tmp_path: Path,
) -> None:
    made = write_sweep(tmp_path, "sweep", [0.9, 0.8, 0.6, 0.7], [0.1, 0.1, 0.2, 0.2], repeats=2)
    counts = {"objectives": [["val/accuracy", "max"]], "trials": 4, "repeats": 2}
    change(made.folder, sweep={**counts, "constraints": {"val/accuracy": "<= 0.85"}})
    made = Sweep(made.folder)
    assert (made.configurations.index[0], made.best.name) == (1, "trial-0003")
    assert made.configurations["infeasible"].to_dict() == {1: 0, 0: 1}
    assert LiveSweep(made.folder).read_view().best == "trial-0003"


@pytest.mark.parametrize(
    ("status", "loss"),
    [("failed", None), ("failed", 0.8), ("interrupted", 0.8), ("running", None), ("stopped", 0.8)],
)
def test_only_a_repeat_that_ended_well_makes_its_configuration_infeasible(
    tmp_path: Path, status: str, loss: float | None
) -> None:
    """The repeat has no loss, or one beyond the limit, like any trial in its first epochs."""
    made = write_sweep(tmp_path, "sweep", [0.9, 0.8, 0.5], [0.1, 0.1, 0.2], repeats=2)
    counters = {"attempt": 0, "epoch": 0, "step": 1, "iteration": 1}
    for number, value in enumerate([0.3, loss, 0.3]):
        if value is not None:
            made.trial(number).folder.append_report({**counters, "val/loss": value})
    change(made.trial(1).folder, status=status)
    change(
        made.folder,
        sweep={
            "objectives": [["val/accuracy", "max"]],
            "trials": 4,
            "repeats": 2,
            "constraints": {"last/val/loss": "<= 0.5"},
        },
    )
    made = Sweep(made.folder)
    best = {
        made.best.name,
        made.configurations["best"].iloc[0],
        sort_best_first(made.trials, dict(made.objectives)).index[0],
        LiveSweep(made.folder).read_view().best,
    }
    assert best == {"trial-0002" if status == "stopped" else "trial-0000"}
    assert made.configurations["infeasible"].sum() == (status == "stopped")


def test_sweep_says_why_no_trial_keeps_its_constraints(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [0.01, 0.2]}}
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "space": space,
        "constraints": {"process_peak_rss_bytes": "<= 1 MiB"},
    }
    done = sweep(described(sweep=settings), tmp_path, local=True)
    with pytest.raises(
        UsageError, match=r"no trial keeps the constraints; of trial-000., process_pe"
    ):
        _ = done.best
    assert done.folder.read_metadata().best is None


@pytest.mark.parametrize(
    ("aggregate", "first", "best"), [("mean", 0, "trial-0000"), ("lower_bound", 1, "trial-0003")]
)
def test_the_best_configuration_has_the_best_mean_or_lower_bound_everywhere(
    tmp_path: Path, aggregate: str, first: int, best: str
) -> None:
    """Means of 0.7 and 0.65, with standard errors of 0.2 and 0.05."""
    made = write_sweep(
        tmp_path,
        "sweep",
        [0.9, 0.5, 0.6, 0.7],
        [0.1, 0.1, 0.2, 0.2],
        repeats=2,
        aggregate=aggregate,
    )
    table = made.configurations
    assert (table.index[0], made.best.name) == (first, best)
    assert table["mean"].max() == pytest.approx(0.7)
    assert [*table.get("lower_bound", ())] == pytest.approx(
        [0.6, 0.5] if aggregate == "lower_bound" else []
    )
    live = LiveSweep(made.folder).read_view()
    assert (live.best, live.configuration and live.configuration.number) == (best, first)
    shown = json.loads(CliRunner().invoke(app, ["show", str(made.path), "--json"]).stdout)
    assert (Path(shown["best"]).name, shown["configurations"][0]["configuration"]) == (best, first)
    assert f"then by {aggregate}" in make_sweep_page(made)
    compared = compare_sweeps([made, made]).metrics["val/accuracy best configuration"].values
    assert compared == pytest.approx([0.7 - 0.05 * first] * 2)
