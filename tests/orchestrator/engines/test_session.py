import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from hooks import Hook, State
from hooks.errors import HookError
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import run_attempt
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.gang_rank import GangRank
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.rendezvous import Rendezvous
from orchestrator.engines.session import Session
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.training import Training
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from orchestrator.testing.differences import find_difference
from tests.ranks import on_ranks
from tests.tasks import Points, described


def assignment(root: Path, **fields: Any) -> Assignment:
    experiment = described(**fields)
    folder = create_run(root, "points", to_yaml(experiment))
    return Assignment(experiment.source, str(folder))


def test_report_is_written_before_it_is_yielded(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    written = RunFolder(given.location)
    for count, report in enumerate(Session(given, World()).reports(), start=1):
        lines = written.read_reports()
        assert len(lines) == count
        assert {**report.metrics, "attempt": 0, "time": lines[-1]["time"]} == lines[-1]
        # and so are the rows that led to it
        assert Run(written).stats["step"].max() == report.metrics["step"]


def test_next_attempt_resumes_a_session_closed_early(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    first = Session(given, World()).reports()
    next(first)
    first.close()
    assert [report.metrics["step"] for report in Session(given, World()).reports()] == [7, 14]
    run = Run(RunFolder(given.location))
    assert [attempt.checkpoint for attempt in run.folder.read_attempts()] == [None, "epoch-0001"]
    assert run.metrics[["attempt", "step"]].to_numpy().tolist() == [[1, 7], [1, 14]]
    # the checkpoint of the first epoch was made before its validation, which is done again
    assert run.stats.groupby(["phase", "epoch", "attempt"], observed=True).size().to_dict() == {
        ("train", 0, 0): 7,
        ("train", 1, 1): 7,
        ("val", 0, 1): 3,
        ("val", 1, 1): 3,
    }


def test_wrong_experiment_is_refused_before_an_attempt_begins(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    wrong = Assignment(given.source.with_values({"batch_size": 0}), given.location)
    with pytest.raises(ConfigError, match="batch_size"):
        next(Session(wrong, World()).reports())
    assert RunFolder(given.location).read_attempts() == []


def test_checkpoint_whose_replacement_was_interrupted_is_one_that_runs_have_in_common(
    tmp_path: Path,
) -> None:
    hooks = [{"checkpoint": {}, "ema": {"decay": decay}} for decay in (0.5, 0.9)]
    leader, follower = (
        assignment(tmp_path / str(number), hooks=own) for number, own in enumerate(hooks)
    )
    together = replace(leader, followers=(follower,))
    list(Session(together, World()).reports())
    checkpoints = Path(leader.location, "checkpoints")
    (checkpoints / "epoch-0002").rename(checkpoints / ".epoch-0002.old")
    shutil.rmtree(checkpoints / "epoch-0001")

    list(Session(together, World()).reports())
    for given in (leader, follower):
        attempts = RunFolder(given.location).read_attempts()
        assert [attempt.checkpoint for attempt in attempts] == [None, "epoch-0002"]


def test_session_opens_no_folder_for_files_of_hooks_if_no_attempt_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = assignment(tmp_path)
    opened: list[Any] = []
    monkeypatch.setattr(run_attempt, "open_artifacts", lambda *given: opened.append(given))
    monkeypatch.setattr(RunFolder, "begin_attempt", Mock(side_effect=OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        list(Session(given, World()).reports())
    assert opened == []


@dataclass
class FailsToLoad(Hook):
    """Fails when a checkpoint is restored."""

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        raise ArithmeticError("it does not fit")


def test_data_is_closed_if_the_checkpoint_cannot_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = assignment(tmp_path, hooks={"fails": {"type": f"{__name__}:FailsToLoad"}})
    first = Session(given, World()).reports()
    next(first)
    first.close()
    close = Mock()
    monkeypatch.setattr(Training, "close", close)
    with pytest.raises(HookError, match="it does not fit"):
        list(Session(given, World()).reports())
    close.assert_called_once_with()


def _session_on_rank(
    rank: int, world_size: int, given: Assignment, stop_at: int | None
) -> list[tuple[int, bool]]:
    taken = []
    for report in Session(given, World(rank, world_size, rank)).reports():
        taken.append((report.metrics["step"], report.is_final))
        if len(taken) == stop_at:
            break
    return taken


def test_two_ranks_share_one_run_and_its_attempts(tmp_path: Path) -> None:
    given = assignment(tmp_path, batch_size=4, hooks={"ema": {"decay": 0.9}})
    assert on_ranks(_session_on_rank, 2, given, 1) == [[(7, False)]] * 2
    assert on_ranks(_session_on_rank, 2, given, None) == [[(7, False), (14, True)]] * 2
    run = Run(RunFolder(given.location))
    assert [
        (attempt.world_size, attempt.epoch_iterations) for attempt in run.folder.read_attempts()
    ] == [
        (2, 7),
        (2, 7),
    ]
    assert [(host.rank, host.local_rank) for host in run.folder.read_attempts()[0].hosts] == [
        (0, 0),
        (1, 1),
    ]
    assert not run.stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()
    # 52 samples are 7 batches of 4 for each rank; 23 are 12 and 11, so 3 batches each
    assert run.stats.groupby(["phase", "rank"], observed=True).size().to_dict() == {
        ("train", 0): 14,
        ("train", 1): 14,
        ("val", 0): 6,
        ("val", 1): 6,
    }
    assert len(run.metrics) == 2


@dataclass
class Wide(Points):
    """A model whose products and sums torch splits over threads."""

    def model(self) -> nn.Module:
        width = 400
        model = nn.Sequential(nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 3))
        nn.init.orthogonal_(model[1].weight)  # type: ignore[arg-type]
        return model


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (2, 2)])
def test_engines_use_the_threads_of_the_experiment(
    tmp_path: Path, cpus: float, threads: int
) -> None:
    """Whatever the process had before; it has these again after."""
    weights, before = [], torch.get_num_threads()
    for number, engine in enumerate(("in-process", "gang")):
        torch.set_num_threads(3)
        given = assignment(
            tmp_path / engine, task=f"{__name__}:Wide", batch_size=52, workers={"cpus": cpus}
        )
        rank = InProcess(Workers(cpus=cpus)) if number == 0 else GangRank(0, Workers(cpus=cpus))
        rank.begin(given, None) if isinstance(rank, InProcess) else rank.begin(
            given, Rendezvous("", 0, 0)
        )
        while rank.next() is not None:
            assert torch.get_num_threads() == 3
        run = Run(RunFolder(given.location))
        assert [host.threads for host in run.folder.read_attempts()[-1].hosts] == [threads]
        weights.append(run.weights("last"))
    torch.set_num_threads(before)
    assert not find_difference(*weights)
