"""A stored checkpoint is measured as its run measured it, on any number of ranks, and what is
around it stays right."""

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import ConfigError, Experiment, Run, Sweep, UsageError, open_run, resume, run
from orchestrator.cli import app
from orchestrator.disk import new_run
from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.lease import Lease
from orchestrator.disk.removal import plan_removal
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.taken_name import check_name_is_free
from orchestrator.engines.assignment import Assignment, EvaluationTarget
from orchestrator.runs.evaluation import prepare_evaluation
from orchestrator.runs.evaluation_overrides import USED_KEYS
from tests.orchestrator.runs.several_ranks import create, train
from tests.orchestrator.runs.written import change
from tests.ranks import on_ranks
from tests.tasks import described

SETS = {
    "task": "tests.orchestrator.loop.test_several_sets:Sets",
    "task_args": {"batch_norm": True, "dropout": 0.5},
}
HOOKS = {
    "ema": {"decay": 0.9, "evaluate": "both"},
    "gradient_clip": {"max_norm": 1.0},
    "early_stopping": {"monitor": "val/few/loss", "patience": 100},
    "checkpoint": {"keep": None},
}


def measures(report: dict[str, Any], phase: str) -> dict[str, float]:
    """What a report says of the model: no times and no memory."""
    return {
        name: value
        for name, value in report.items()
        if name.startswith(f"{phase}/") and not name.endswith(("_s", "_bytes"))
    }


def reported(done: Run, step: int, phase: str) -> dict[str, float]:
    return next(
        found
        for report in done.reports()
        if report["step"] == step and (found := measures(report, phase))
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    changes = [
        {"at": "1 epochs", "set": {"hooks.early_stopping.patience": 50, "optimizer.lr": 0.05}}
    ]
    experiment = described(
        **SETS,
        hooks=HOOKS,
        changes=changes,
        scheduler={"type": "StepLR", "step_size": 1},
        precision="bf16",
    )
    return run(experiment, tmp_path_factory.mktemp("runs"), "first", local=True)


def test_evaluation_repeats_the_report_and_writes_nothing_to_the_run(done: Run) -> None:
    root = Path(done.path)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*") if file.is_file()}
    val, test = done.evaluate("epoch-0001"), done.evaluate("last", "test")
    for one, step, phase in ((val, 7, "val"), (test, 14, "test")):
        (report,) = one.reports()
        assert measures(report, phase) == reported(done, step, phase)
        assert {name.partition("/")[0] for name in report if "/" in name} == {phase, "memory"}
        own = done.stats[done.stats["step"] == step]
        rows = one.stats
        keys = ["rank", "phase", "epoch", "iteration", "step", "loss"]
        assert (
            rows[keys].values.tolist()
            == own[own["phase"].str.startswith(phase)][keys].values.tolist()
        )
    assert len(measures(val.reports()[0], "val")) == 3 * 2 * 2
    assert before == {file: file.stat().st_mtime_ns for file in before}
    assert {name for name, one in val.config["hooks"].items() if one is None} == {
        "checkpoint",
        "early_stopping",
    }
    subject, tested = val.folder.read_metadata().evaluates, test.folder.read_metadata().evaluates
    assert subject is not None
    assert tested is not None
    assert subject == replace(
        tested, phase="val", checkpoint="epoch-0001", epoch=1, step=7, sha256=subject.sha256
    )
    assert val.summary("rank")["rows"].tolist() == [len(val.stats)]


def test_evaluation_takes_overrides(done: Run) -> None:
    """The raw weights alone, in larger batches, and with a hook of its own."""
    asked = [
        "hooks.ema=false",
        "loader.eval_batch_size=64",
        "precision=fp32",
        f"hooks.noted={{type: {__name__}:Noted}}",
    ]
    one = done.evaluate("last", overrides=asked)
    (report,) = one.reports()
    assert {*measures(report, "val")} == {
        f"val/{name}{metric}" for name in ("", "few/", "noisy/") for metric in ("accuracy", "loss")
    }
    assert report["val/loss"] == pytest.approx(reported(done, 14, "val")["val/loss"], rel=0.02)
    assert len(one.stats) == 3
    assert one.folder.read_metadata().info["noted"] == [
        "on_load",
        "on_start",
        "val",
        "val/noisy",
        "val/few",
        "on_end",
    ]


@dataclass
class Noted(Hook):
    """Notes what it sees."""

    def __post_init__(self) -> None:
        self.seen: list[str] = []

    def on_load(self, state: State, checkpoint: Any) -> None:
        self.seen.append("on_load")

    def on_start(self, state: State) -> None:
        self.seen.append("on_start")

    def on_phase_end(self, state: State) -> None:
        self.seen.append(state.phase)

    def on_end(self, state: State) -> None:
        state.info["noted"] = [*self.seen, "on_end"]


def _to_measure(run: Path, name: str, experiment: Any) -> Assignment:
    return replace(
        create(experiment, run / EVALUATIONS, name), target=EvaluationTarget("epoch-0001", "val")
    )


def test_evaluation_is_equal_on_any_number_of_ranks(done: Run, tmp_path: Path) -> None:
    """Two ranks measure what two have trained, each with its own buffers, and what one has; and one
    what two have."""
    experiments = {
        strategy: described(
            **SETS, epochs=1, hooks=HOOKS, workers={"count": 2, "strategy": strategy}
        )
        for strategy in ("ddp", "fsdp")
    }
    trained = {
        strategy: create(experiment, tmp_path, strategy)
        for strategy, experiment in experiments.items()
    }
    again = {
        strategy: _to_measure(tmp_path / strategy, "again", experiment)
        for strategy, experiment in experiments.items()
    }
    asked = ["precision=fp32"]
    spread = _to_measure(
        Path(done.path),
        "spread",
        prepare_evaluation(done.folder, "last", "val", asked, workers=2).experiment,
    )
    on_ranks(train, 2, [*trained.values(), *again.values(), spread])
    for strategy in experiments:
        two = open_run(tmp_path / strategy)
        (report,) = open_run(again[strategy].location).reports()
        assert measures(report, "val") == reported(two, 4, "val")
        assert measures(two.evaluate(workers=1, local=True).reports()[0], "val") == pytest.approx(
            reported(two, 4, "val"), rel=1e-5
        )
    shares = open_run(spread.location)
    assert shares.stats["rank"].nunique() == 2
    assert measures(shares.reports()[0], "val") == pytest.approx(
        measures(done.evaluate("epoch-0001", overrides=asked).reports()[0], "val"), rel=1e-5
    )


def test_evaluation_takes_another_name_if_a_driver_takes_its_own_meanwhile(
    done: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as others:

        def take_name(folder: RunFolder) -> None:
            check_name_is_free(folder)
            if not folder.name.endswith("-2"):
                others.enter_context(Lease(folder.storage))

        monkeypatch.setattr(new_run, "check_name_is_free", take_name)
        assert done.evaluate("epoch-0001", "test").name == "epoch-0001-test-2"


# What can be wrong


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("epochs=9", "has no effect on an evaluation, which reads task_args"),
        ("batch_size=4", "has no effect on an evaluation (did you mean 'loader.eval_batch_size'?)"),
        ("loader={drop_last: true}", "loader: has no effect on an evaluation"),
        ("workers.ddp={static_graph: true}", "workers.ddp: has no effect on an evaluation"),
        ("hooks.ema.decay=0.5", "cannot differ from the run; hooks.ema=false leaves the hook out"),
        ("hooks={ema: {decay: 0.5}}", "hooks: has no effect on an evaluation"),
        ("hooks.gradient_clip=false", "has no effect on an evaluation"),
        ("hooks.checkpoint.keep=1", "has no effect on an evaluation"),
        ("hooks.anomaly_detection=false", "is already off"),
        ("hooks.time_limit.limit=5", "has no effect on an evaluation"),
        ("precision=fp17", "must be 'fp32', 'bf16' or 'fp16'"),
        ("precision", "must be key=value"),
    ],
)
def test_overrides_without_effect_are_refused(done: Run, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare_evaluation(done.folder, "last", "val", [override])
    assert words in str(refused.value)


TRAINING_KEYS = set(
    "name task epochs steps epoch_steps batch_size optimizer optimizers scheduler scaler activation_checkpointing"
    " accumulate validate_every loader changes tags notes notify sweep".split()
)
"""Keys that have no effect on an evaluation, as a whole."""


def test_each_key_of_an_experiment_is_used_or_refused() -> None:
    used = {key for key in USED_KEYS if "." not in key}
    assert used | TRAINING_KEYS | {"hooks"} == set(Experiment.model_fields)
    assert not used & TRAINING_KEYS


@pytest.mark.parametrize(
    ("reference", "more", "words"),
    [
        ("@epoch-0009", [], "no checkpoint 'epoch-0009' in"),
        ("-nowhere", [], "is not a run"),
        (
            "",
            ["--phase", "test"],
            "has no test data: when epoch-0002 was saved, data() returned only train, val",
        ),
        ("@last", ["--workers", "2"], "2 workers need the engine gang or train"),
        ("@last", ["--workers", "2", "workers.count=3"], "remove one of them"),
        ("@last", ["--workers", "2", "workers={cpus: 1}"], "replaces the whole section"),
        ("@last", ["hooks.ema=3"], "must be a mapping of the hook's parameters"),
    ],
)
def test_missing_checkpoint_or_data_is_a_usage_error(
    plain: Run, reference: str, more: list[str], words: str
) -> None:
    result = CliRunner().invoke(app, ["evaluate", f"{plain.path}{reference}", *more])
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert not (Path(plain.path) / EVALUATIONS).exists()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without test data."""
    return run(described(), tmp_path_factory.mktemp("plain"), local=True)


def test_missing_task_error_says_where_it_was(plain: Run, tmp_path: Path) -> None:
    shutil.copytree(plain.path, tmp_path / "moved")
    source = json.loads((tmp_path / "moved/source.json").read_text())
    source["written"]["task"] = "gone.away:Task"
    (tmp_path / "moved/source.json").write_text(json.dumps(source))
    with pytest.raises(
        UsageError,
        match=r"cannot be evaluated: task: no module 'gone'(.|\n)*in the import path \(the run used commit",
    ):
        open_run(tmp_path / "moved").evaluate()


def test_experiment_without_seed_is_measured_and_loaded(plain: Run, tmp_path: Path) -> None:
    """The line may be gone from the file; the seed is that of the source, or the default."""
    shutil.copytree(plain.path, tmp_path / "copy")
    file = tmp_path / "copy/experiment.yaml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("seed:")))
    assert len(lines) == len(file.read_text().splitlines()) + 1
    copy = open_run(tmp_path / "copy")
    (report,) = copy.evaluate("last", local=True).reports()
    assert measures(report, "val") == reported(plain, 14, "val")
    assert copy.samples("iteration = 3")["index"].equals(plain.samples("iteration = 3")["index"])
    assert copy.load("last").training is False


def test_other_verbs_know_evaluations(done: Run, tmp_path: Path) -> None:
    shutil.copytree(done.path, tmp_path / "copy", ignore=shutil.ignore_patterns(EVALUATIONS))
    copy = open_run(tmp_path / "copy")

    def invoke(*words: str) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return result.stdout

    report = json.loads(invoke("evaluate", f"{copy.path}@epoch-0001", "--json"))
    assert (report["path"], report["status"]) == (
        f"{copy.path}/evaluations/epoch-0001-val",
        "finished",
    )
    assert f"evaluates: {copy.path}, checkpoint epoch-0001" in invoke("show", report["path"])
    files = json.loads(invoke("doctor", str(copy.path), "--files", "--json"))["files"]
    assert {file["file"]: file["status"] for file in files}[
        "evaluations/epoch-0001-val/run.json"
    ] == "readable"
    evaluation = RunFolder(report["path"])
    change(evaluation, status="running", host="elsewhere")
    shutil.rmtree(f"{report['path']}/.driver")
    with pytest.raises(
        UsageError, match="epoch-0001-val is running: end it before you remove copy"
    ):
        plan_removal(copy.path)
    change(evaluation, status="failed")
    with pytest.raises(
        UsageError,
        match=r"is an evaluation, which cannot be resumed.*hookyard evaluate .*@epoch-0001",
    ):
        resume(report["path"])
    with pytest.raises(UsageError, match="is an evaluation, and has no checkpoints"):
        Run(evaluation).evaluate()
    with pytest.raises(UsageError, match="does not fit this experiment"):
        copy.evaluate("last", overrides=["task_args.batch_norm=false"])
    assert open_run(f"{copy.path}/evaluations/epoch-0002-val").status == "failed"
    invoke("rm", str(copy.path), "--yes")
    assert not (tmp_path / "copy").exists()


def test_sweep_path_means_its_best_trial(outcome: Sweep, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(outcome.path), "--json"])
    made = json.loads(result.stdout)
    assert made["path"] == f"{outcome.best.path}/evaluations/epoch-0001-val"
    assert open_run(made["path"]).folder.read_metadata().engine == "in-process"  # as the sweep's
    assert measures(made["metrics"], "val") == measures(outcome.best.reports()[-1], "val")
    assert len(outcome.trials) == 2
    with pytest.raises(
        UsageError, match=r"data\(\) of Points gives train, val, and no test to evaluate"
    ):
        outcome.best.evaluate("last", "test", ["task_args.val=5"], local=True)
