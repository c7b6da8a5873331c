"""How runs are begun and taken up again: names, engines, interruptions, and who may drive."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hooks import Hook, State
from orchestrator import Experiment, RunError, UsageError, open_run, resume, run, sweep
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.engines.ray_connection import Ray
from orchestrator.errors import ConfigError, HookyardError
from orchestrator.runs.result import Run
from orchestrator.runs.resume import load_experiment_to_resume
from tests.orchestrator.disk.test_lease import elsewhere, put
from tests.orchestrator.runs.compared import NOISY, each_row_once, stored
from tests.orchestrator.runs.written import change
from tests.ranks import on_ranks
from tests.tasks import Points, described


def test_a_run_keeps_its_engine(tmp_path: Path) -> None:
    done = run(described(epochs=1), tmp_path, engine="in-process", local=True)
    assert (done.folder.read_metadata().engine, done.folder.read_metadata().local) == (
        "in-process",
        True,
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"engine": "train"},
            "workers.spares has no effect with the engine train; use the engine gang",
        ),
        (
            {"engine": "gang", "local": True},
            "`local` means the engine in-process; leave out `local` or the engine gang",
        ),
        (
            {"local": True, "address": "head:6379"},
            "joins no cluster, but the address head:6379 was given",
        ),
        ({"engine": "gang"}, r"workers.count must be one number for the engine gang, got \[1, 2\]"),
    ],
)
def test_unsuitable_engine_is_refused_before_a_run_is_created(
    tmp_path: Path, how: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run(described(workers={"count": [1, 2], "spares": 1}), tmp_path, **how)
    assert not list(tmp_path.iterdir())


def test_missing_resources_are_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ray, "__enter__", Mock(side_effect=AssertionError("Ray is started")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # one GPU, which torch is not built for
    grid = {
        "metric": "val/loss",
        "mode": "min",
        "search": "grid",
        "space": {"seed": {"grid": [1, 2]}},
    }
    for workers, words in (
        ({"gpu": True}, "workers.gpu needs a GPU, but torch"),
        ({"count": 10_000}, "needs 10,000 CPUs"),
    ):
        for engine in ("train", "gang"):
            with pytest.raises(UsageError, match=words):
                run(described(workers=workers), tmp_path, engine=engine)
        with pytest.raises(UsageError, match=words):
            sweep(described(workers=workers, sweep=grid), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("begin", [run, sweep])
@pytest.mark.parametrize("local", [True, False])
def test_unset_environment_variable_is_refused_before_a_run_is_created(
    tmp_path: Path, begin: Any, local: bool
) -> None:
    grid = {
        "metric": "val/loss",
        "mode": "min",
        "search": "grid",
        "space": {"seed": {"grid": [1, 2]}},
    }
    experiment = described(
        environment=["HOOKYARD_UNSET"], **({"sweep": grid} if begin is sweep else {})
    )
    with pytest.raises(UsageError, match="environment: HOOKYARD_UNSET is not set"):
        begin(experiment, tmp_path, local=local)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["", "..", "/tmp/esc", "-rf", "a\n", "\x1b[31mred", "n" * 300, "\u6f22" * 67, "a b", 5]
)
def test_a_name_is_checked_by_the_rule_of_the_file(tmp_path: Path, name: Any) -> None:
    swept = described(
        epochs=1, sweep={"metric": "val/loss", "mode": "min", "space": {"seed": {"grid": [1, 2]}}}
    )
    for begin, experiment in ((run, described(epochs=1)), (sweep, swept)):
        with pytest.raises(
            UsageError, match=r"name .* must contain only letters, digits"
        ) as refused:
            begin(experiment, tmp_path / "runs", name, local=True)  # type: ignore[operator]
        assert "\x1b" not in str(refused.value)
        assert len(str(refused.value)) < 400
    assert list(tmp_path.iterdir()) == []


EVERYTHING = {
    "task_args": NOISY,
    "batch_size": 6,
    "scheduler": {"type": "CosineAnnealingLR", "T_max": 16},
    "hooks": {"ema": {"decay": 0.9}, "param_scheduler": {"every": "1 steps"}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(described(**EVERYTHING), tmp_path_factory.mktemp("whole"), local=True)


@pytest.mark.parametrize("looks", [1, 8, 12])
def test_interrupted_run_resumes_bit_for_bit(
    tmp_path: Path, interrupted: Callable[..., Run], whole: Run, looks: int
) -> None:
    cut = interrupted(looks, run, described(**EVERYTHING), tmp_path, local=True)
    assert cut.status == "interrupted"
    trained = len(cut.stats.query("phase == 'train'"))
    assert trained < 16
    assert cut.metrics["iteration"].iloc[-1] == trained
    done = resume(cut.path)
    assert done.status == "finished"
    assert stored(done) == stored(whole)
    assert each_row_once(done.stats)
    columns = ["rank", "phase", "epoch", "iteration", "step", "samples", "batch_size", "loss", "lr"]
    pd.testing.assert_frame_equal(done.stats[columns], whole.stats[columns])
    told = [
        "epoch",
        "step",
        "iteration",
        "samples",
        "train/loss",
        "train/accuracy",
        "val/loss",
        "val/accuracy",
    ]
    pd.testing.assert_frame_equal(done.metrics[told], whole.metrics[told])


def test_validation_repeated_after_a_resume_counts_once_in_hook_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last checkpoint precedes a validation and its report, which also has the speed of the
    training before it."""

    def breaking(iteration: int) -> Experiment:
        return described(
            hooks={
                "breaks": {"type": "tests.tasks:Breaks", "iteration": iteration},
                "throughput": {},
            }
        )

    with pytest.raises(RunError):
        run(breaking(9), tmp_path, "cut", local=True)
    whole = run(breaking(1000), tmp_path, "whole", local=True)
    file = tmp_path / "cut/experiment.yaml"
    file.write_text(file.read_text().replace("iteration: 9", "iteration: 1000"))
    load_experiment_to_resume(RunFolder(tmp_path / "cut"))  # as the command line does, too
    done = resume(tmp_path / "cut")
    assert caplog.text.count("experiment.yaml was edited") == 1
    costs, expected = (
        made.hook_costs.query("event in ('on_step', 'on_phase_end', 'on_report')").set_index(
            ["hook", "event"]
        )["calls"]
        for made in (done, whole)
    )
    pd.testing.assert_series_equal(costs, expected)
    assert done.metrics[whole.metrics.columns].notna().all(axis=None)


def test_resume_changes_the_number_of_workers(
    tmp_path: Path, interrupted: Callable[..., Run]
) -> None:
    cut = interrupted(
        3, run, described(workers={"count": 3, "cpus": 2}), tmp_path, "cut", local=True
    )
    done = resume(cut.path, workers=2)
    assert (done.status, done.config["workers"]["count"], done.config["workers"]["cpus"]) == (
        "finished",
        2,
        2,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "name: points",
            "name: other",
            r"experiment\.yaml: name: cannot be changed .* write points again",
        ),
        ("init: null", "init: {from: model.pt}", r"init was edited, .* continues from .*step-0*3"),
    ],
)
def test_edits_that_a_resume_cannot_apply_are_refused_and_nothing_is_lost(
    tmp_path: Path, interrupted: Callable[..., Run], old: str, new: str, message: str
) -> None:
    cut = interrupted(3, run, described(), tmp_path, "cut", local=True)
    file = tmp_path / "cut/experiment.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises((ConfigError, UsageError), match=message):
        resume(cut.path)

    file.write_text(text)
    assert resume(cut.path).status == "finished"


@dataclass
class Failing(Points):
    """Fails in its first forward pass until a file exists."""

    def model(self) -> nn.Module:
        model = nn.Linear(5, 3)
        model.register_forward_pre_hook(_fail_until_mended)
        return model


def _fail_until_mended(module: nn.Module, inputs: Any) -> None:
    if not Path("mended").exists():
        raise ValueError("not mended yet")


@pytest.mark.parametrize("from_start", [False, True])
def test_edited_init_counts_in_a_run_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_start: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a", 1.0), ("b", 2.0)):
        weights = {"weight": torch.full((3, 5), value), "bias": torch.full((3,), value)}
        torch.save(weights, f"{name}.pt")
    changes: dict[str, Any] = {
        "task": f"{__name__}:Failing",
        "epochs": 1,
        "optimizer": {"type": "SGD", "lr": 0.0},
        "init": {"from": "a.pt"},
    }
    with pytest.raises(RunError, match="not mended yet"):
        run(described(**changes), tmp_path, "r", local=True)

    Path("mended").touch()
    file = tmp_path / "r/experiment.yaml"
    text = file.read_text()
    assert "a.pt" in text
    file.write_text(text.replace("a.pt", "b.pt"))
    done = resume(file.parent, from_start=from_start)
    assert torch.equal(done.weights("last")["weight"], torch.full((3, 5), 2.0))
    init = done.folder.read_metadata().init
    assert init is not None
    assert init.path == f"{tmp_path}/b.pt"


def test_from_start_keeps_an_intact_checkpoint(
    tmp_path: Path, interrupted: Callable[..., Run]
) -> None:
    cut = interrupted(5, run, described(), tmp_path, local=True)
    manifests = list(Path(cut.path).glob("checkpoints/*/manifest.json"))
    with pytest.raises(UsageError, match=r"has an intact checkpoint, .*, and would lose it"):
        resume(cut.path, from_start=True)
    assert manifests == list(Path(cut.path).glob("checkpoints/*/manifest.json")) != []
    assert resume(cut.path).status == "finished"


def test_running_run_cannot_be_resumed(tmp_path: Path, interrupted: Callable[..., Run]) -> None:
    cut = interrupted(5, run, described(), tmp_path, local=True)
    with (
        make_lease(cut.folder),
        pytest.raises(
            UsageError,
            match=rf"is still running \(process {os.getpid()}, since .*Z\); stop it first",
        ),
    ):
        resume(cut.path, force_lease=True)


def resumed_together(rank: int, world_size: int, path: str) -> str:
    dist.barrier()
    dist.destroy_process_group()
    try:
        return resume(path).status
    except UsageError as error:
        return str(error)


def test_one_of_two_concurrent_resumes_wins(
    tmp_path: Path, interrupted: Callable[..., Run]
) -> None:
    cut = interrupted(5, run, described(task_args=NOISY), tmp_path, "cut", local=True)
    whole = run(described(task_args=NOISY), tmp_path, "whole", local=True)
    told = sorted(on_ranks(resumed_together, 2, cut.path), key=len)
    assert told[0] == "finished"
    assert re.search("is still running|at the same time and was first|has finished", told[1])
    done = open_run(cut.path)
    assert len(done.folder.read_attempts()) == 2
    columns = ["rank", "phase", "epoch", "iteration", "step", "loss"]
    pd.testing.assert_frame_equal(done.stats[columns], whole.stats[columns])
    assert done.metrics["val/loss"].tolist() == whole.metrics["val/loss"].tolist()


def test_lease_of_another_machine_is_taken_only_by_force(
    tmp_path: Path, interrupted: Callable[..., Run]
) -> None:
    cut = interrupted(5, run, described(), tmp_path, local=True)
    put(cut.folder.storage, elsewhere())
    change(cut.folder, status="running", host="elsewhere")
    with pytest.raises(
        UsageError,
        match=rf"process {os.getpid()} on elsewhere.*hookyard resume {cut.path} --force-lease",
    ):
        resume(cut.path)
    done = resume(cut.path, force_lease=True)
    assert (done.status, len(done.folder.read_attempts())) == ("finished", 2)


def test_too_many_workers_are_refused_without_changes(
    tmp_path: Path, interrupted: Callable[..., Run]
) -> None:
    cut = interrupted(5, run, described(), tmp_path, local=True)
    change(cut.folder, engine="train")
    before = cut.folder.storage.read("experiment.yaml"), cut.folder.read_metadata()
    with pytest.raises(UsageError, match="needs 1,000 CPUs, but this machine has"):
        resume(cut.path, workers=1000)
    assert (cut.folder.storage.read("experiment.yaml"), cut.folder.read_metadata()) == before


def test_run_that_is_over_cannot_be_resumed(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"has finished\. To train it longer, set a new total: hookyard run .*points@last epochs=4",
    ):
        resume(finished.path)
    shutil.copytree(finished.path, tmp_path / "edited")
    experiment = tmp_path / "edited/experiment.yaml"
    experiment.write_text(experiment.read_text().replace("\nepochs: 2\n", "\nepochs: 9\n"))
    with pytest.raises(UsageError, match=r"hookyard run .*edited@last epochs=9 --local$"):
        resume(tmp_path / "edited")
    with pytest.raises(UsageError, match="is not a run"):
        resume(tmp_path / "nothing")


def test_run_refuses_a_sweep(tmp_path: Path) -> None:
    experiment = described(
        sweep={"metric": "val/loss", "mode": "min", "space": {"optimizer.lr": {"choice": [0.1]}}}
    )
    with pytest.raises(UsageError, match="use `hookyard sweep`"):
        run(experiment, tmp_path, local=True)


@dataclass
class Fails(Points):
    """Points, of which one method raises at its first call."""

    where: str = ""

    def _raise(self, where: str) -> None:
        if self.where == where:
            raise ValueError(f"{where} is wrong")

    def model(self) -> nn.Module:
        self._raise("model")
        return super().model()

    def loss(self, output: Any, batch: Any) -> Tensor:
        self._raise("loss")
        return super().loss(output, batch)


@dataclass
class Breaks(Hook):
    """A hook that raises at the second step."""

    def on_step(self, state: State) -> None:
        if state.step == 2:
            raise ValueError("on_step is wrong")


def failing(where: str, **more: Any) -> Any:
    if where == "on_step":
        return described(hooks={"breaks": {"type": f"{__name__}:Breaks"}}, epochs=1, **more)
    return described(task=f"{__name__}:Fails", task_args={"where": where}, epochs=1, **more)


@pytest.mark.parametrize("where", ["model", "loss"])
def test_name_is_free_after_a_failure_before_the_first_step(tmp_path: Path, where: str) -> None:
    for _ in range(2):
        with pytest.raises(HookyardError, match="is wrong"):
            run(failing(where), tmp_path, "again", local=True)
        assert open_run(tmp_path / "again").status == "failed"
    done = run(failing("nowhere"), tmp_path, "again", local=True)
    assert done.status == "finished"
    assert not done.stats.duplicated(["phase", "epoch", "iteration"]).any()
    assert [attempt.number for attempt in done.folder.read_attempts()] == [0]
    with pytest.raises(UsageError, match="exists"):
        run(failing("nowhere"), tmp_path, "again", local=True)


def test_run_that_trained_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(HookyardError, match="on_step is wrong"):
        run(failing("on_step"), tmp_path, "kept", local=True)
    with pytest.raises(UsageError, match=r"exists\. To resume it: hookyard resume"):
        run(failing("nowhere"), tmp_path, "kept", local=True)
    finished = run(failing("nowhere"), tmp_path, "done", local=True)
    left = ("stats.parquet", "metrics.jsonl", "checkpoints")
    for evidence in left:
        folder = shutil.copytree(finished.path, tmp_path / f"only-{evidence}")
        change(RunFolder(folder), status="failed")
        for name in ({*left} - {evidence}) | {"stats", "hooks.parquet"}:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
        before = sorted(folder.rglob("*"))
        with pytest.raises(UsageError, match="exists"):
            run(failing("nowhere"), tmp_path, folder.name, local=True)
        assert sorted(folder.rglob("*")) == before


def test_run_can_take_a_number_or_replace_the_run_of_its_name(tmp_path: Path) -> None:
    first = run(failing("nowhere"), tmp_path, "again", local=True)
    second = run(failing("nowhere"), tmp_path, "again", local=True, if_exists="number")
    assert (second.name, second.status) == ("again-2", "finished")
    started = first.folder.read_metadata().started
    replaced = run(failing("nowhere"), tmp_path, "again", local=True, if_exists="replace")
    assert replaced.name == "again"
    assert replaced.folder.read_metadata().started > started
    assert [attempt.number for attempt in replaced.folder.read_attempts()] == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "again-2"]
    for weights in (replaced.path, f"{replaced.path}/checkpoints/epoch-0001/model.pt"):
        initialized = failing("nowhere", init={"from": str(weights)})
        with pytest.raises(UsageError, match="cannot be replaced: the new run starts from it"):
            run(initialized, tmp_path, "again", local=True, if_exists="replace")
    longer = replaced.continue_from("last", ["epochs=2"])
    with pytest.raises(UsageError, match="cannot be replaced: the new run starts from it"):
        run(longer, tmp_path, "again", local=True, if_exists="replace")
    assert (
        run(longer, tmp_path, "again", local=True, if_exists="number").metrics["epoch"].iloc[-1]
        == 1
    )


def test_name_of_a_sweep_without_training_is_free(tmp_path: Path) -> None:
    def asked(**choices: Any) -> Any:
        settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": choices}
        return replaced(failing("nowhere"), settings)

    def replaced(experiment: Any, settings: dict[str, Any]) -> Any:
        from orchestrator.experiment.load import make_experiment, to_dict

        return make_experiment({**to_dict(experiment), "sweep": settings})

    lost = sweep(
        asked(**{"task_args.where": {"grid": ["model", "loss"]}}), tmp_path, "swept", local=True
    )
    assert list(lost.trials["status"]) == ["failed", "failed"]
    done = sweep(asked(**{"task_args.where": {"grid": ["none"]}}), tmp_path, "swept", local=True)
    assert list(done.trials["status"]) == ["finished"]
    again = asked(**{"task_args.where": {"grid": ["none", "nowhere"]}})
    with pytest.raises(UsageError, match="exists"):
        sweep(again, tmp_path, "swept", local=True)
    assert sweep(again, tmp_path, "swept", local=True, if_exists="number").name == "swept-2"
    assert len(sweep(again, tmp_path, "swept", local=True, if_exists="replace").trials) == 2


def test_name_is_free_after_a_kill_before_the_first_step(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "kept", "name: kept\n")
    change(folder, pid=2**22 + 1)
    create_run(tmp_path, "kept", "name: other\n")
    assert folder.read_experiment_text() == "name: other\n"
