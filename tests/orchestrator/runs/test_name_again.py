"""The name of a run that never trained may be taken again; that of one that did may not."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from hooks import Hook, State
from orchestrator import open_run, run, sweep
from orchestrator.errors import HookyardError, UsageError
from orchestrator.records.new_run import create_run
from orchestrator.records.run_folder import RunFolder
from tests.tasks import Points, described


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
    with pytest.raises(UsageError, match="exists already"):
        run(failing("nowhere"), tmp_path, "again", local=True)


def test_run_that_trained_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(HookyardError, match="on_step is wrong"):
        run(failing("on_step"), tmp_path, "kept", local=True)
    with pytest.raises(UsageError, match=r"exists already\. To resume it: hookyard resume"):
        run(failing("nowhere"), tmp_path, "kept", local=True)
    finished = run(failing("nowhere"), tmp_path, "done", local=True)
    left = ("stats.parquet", "metrics.jsonl", "checkpoints")
    for evidence in left:
        folder = shutil.copytree(finished.path, tmp_path / f"only-{evidence}")
        RunFolder(folder).update(status="failed")
        for name in ({*left} - {evidence}) | {"stats", "hooks.parquet"}:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
        before = sorted(folder.rglob("*"))
        with pytest.raises(UsageError, match="exists already"):
            run(failing("nowhere"), tmp_path, folder.name, local=True)
        assert sorted(folder.rglob("*")) == before


def test_name_of_a_sweep_without_training_is_free(tmp_path: Path) -> None:
    def asked(**choices: Any) -> Any:
        settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": choices}
        return replaced(failing("nowhere"), settings)

    def replaced(experiment: Any, settings: dict[str, Any]) -> Any:
        from orchestrator.config.load import make_experiment, to_dict

        return make_experiment({**to_dict(experiment), "sweep": settings})

    lost = sweep(asked(**{"task_args.where": {"grid": ["model", "loss"]}}), tmp_path, "swept", local=True)
    assert list(lost.trials["status"]) == ["failed", "failed"]
    done = sweep(asked(**{"task_args.where": {"grid": ["none"]}}), tmp_path, "swept", local=True)
    assert list(done.trials["status"]) == ["finished"]
    with pytest.raises(UsageError, match="exists already"):
        sweep(asked(**{"task_args.where": {"grid": ["none"]}}), tmp_path, "swept", local=True)


def test_name_is_free_after_a_kill_before_the_first_step(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "kept", "name: kept\n")
    folder.update(pid=2**22 + 1)
    create_run(tmp_path, "kept", "name: other\n")
    assert folder.read_experiment_text() == "name: other\n"
