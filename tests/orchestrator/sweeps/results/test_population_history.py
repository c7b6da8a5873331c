"""Going on from another trial's weights, and doing in a single run what a population did: without Ray."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Experiment, UsageError, open_run, run
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import to_yaml
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.session import SWEEP_KEEPS, Assignment, Session
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.records.new_run import create_run
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_name
from orchestrator.storage import Storage
from orchestrator.sweeps.results.population_history import Exploit, History, lineage
from orchestrator.sweeps.results.population_replay import replay
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.trial_setup import begin_trial
from tests.ranks import on_ranks
from tests.tasks import described

SPACE = {"hooks.ema.decay": {"uniform": [0.1, 0.9]}, "optimizer.lr": {"loguniform": [0.01, 0.5]}}


def population(**fields: Any) -> Experiment:
    settings = {"metric": "val/loss", "mode": "min", "trials": 3, "scheduler": "pbt", "space": SPACE}
    hooks = {"ema": {}, "console": None, "checkpoint": {"keep": 2}}
    return described(**{"epochs": 4, "hooks": hooks, "sweep": settings, **fields})


class ByHand:
    """A trial driven as Tune drives it: report by report, saved, and begun again from a checkpoint with other
    values."""

    def __init__(self, sweep: RunFolder, experiment: Experiment, number: int) -> None:
        self.sweep, self.experiment, self.number = sweep, experiment, number

    def begin(self, values: dict[str, Any], checkpoint: str | None = None) -> None:
        trial, folder = begin_trial(str(self.sweep), self.number, self.experiment.source, self.experiment.sweep, values)
        self.folder = folder
        self.session = Session(Assignment(trial.experiment.source, str(folder), checkpoint=checkpoint), World(), trial)
        self.reports = self.session.reports()

    def next(self) -> Report:
        return next(self.reports)

    def finish(self) -> None:
        for _ in self.reports:
            pass


def store_of(folder: RunFolder) -> CheckpointStore:
    return CheckpointStore(folder.checkpoints())


@pytest.fixture
def sweep(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, "sweep", "", sweep={"metric": "val/loss", "mode": "min", "trials": 3})


GOOD = {"hooks.ema.decay": 0.5, "optimizer.lr": 0.2}
BAD = {"hooks.ema.decay": 0.9, "optimizer.lr": 0.01}
MUTATED = {"hooks.ema.decay": 0.6, "optimizer.lr": 0.16}


def exploited(sweep: RunFolder, experiment: Experiment) -> tuple[ByHand, ByHand]:
    """Trial 1 makes three reports and then goes on from trial 0's second, with mutated values."""
    good, bad = ByHand(sweep, experiment, 0), ByHand(sweep, experiment, 1)
    good.begin(GOOD)
    bad.begin(BAD)
    good.next()
    report = good.next()
    checkpoint = good.session.save()
    for _ in range(3):
        bad.next()
    bad.reports.close()
    bad.begin(MUTATED, checkpoint)
    fields = {"report": 2, "epoch": 1, "step": report.metrics["step"], "score": 1.0, "source_score": 0.5}
    History(sweep).append(trial=trial_name(1), source=trial_name(0), before=GOOD, after=MUTATED, **fields)
    return good, bad


def test_a_replay_of_what_a_population_did_comes_to_the_same_weights(sweep: RunFolder, tmp_path: Path) -> None:
    experiment = population(scheduler={"type": "CosineAnnealingLR", "T_max": 4})
    _, bad = exploited(sweep, experiment)
    bad.finish()
    again = replay(sweep, experiment, "trial-0001")
    assert again.sweep is None
    assert again.optimizer.arguments["lr"] == 0.2
    assert [(str(change.at), change.set) for change in again.changes] == [("14 steps", MUTATED)]
    alone = run(again, tmp_path, "alone", local=True)
    trial = open_run(bad.folder.storage.location)
    assert alone.metrics["val/loss"].iloc[-1] == trial.metrics["val/loss"].iloc[-1]
    later = trial.stats.query("phase == 'train' and step > 14")
    assert len(later) == 14
    assert alone.stats.query("phase == 'train' and step > 14")["loss"].tolist() == later["loss"].tolist()
    assert alone.stats.query("phase == 'train' and step > 14")["lr"].tolist() == later["lr"].tolist()


def test_a_trial_taken_out_has_the_changes_that_its_weights_have_seen(sweep: RunFolder) -> None:
    experiment = population()
    sweep.storage.write("experiment.yaml", to_yaml(experiment))
    exploited(sweep, experiment)
    made = Sweep(sweep)
    taken = made.experiment(1)
    assert taken == replay(sweep, experiment, "trial-0001")
    assert [change.set for change in taken.changes] == [MUTATED]
    source = made.experiment("trial-0000")
    assert (source.name, source.changes, source.optimizer.arguments["lr"]) == ("sweep-trial-0000", [], 0.2)


def test_what_a_trial_left_behind_is_superseded(sweep: RunFolder) -> None:
    """Its third epoch is of a history it gave up: rows, reports and checkpoints of it are gone from the tables."""
    good, bad = exploited(sweep, population())
    bad.next()
    trial = open_run(bad.folder.storage.location)
    assert trial.metrics["epoch"].tolist() == [0, 1, 2]
    assert not trial.stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()
    assert bad.folder.metadata().values == MUTATED
    assert trial.config["optimizer"]["lr"] == 0.16
    assert store_of(bad.folder).names() == ["epoch-0002", "epoch-0003"]
    assert "epoch-0002" in store_of(good.folder).names()
    assert store_of(bad.folder).latest() == "epoch-0003", "the newest whose files are whole"


def test_cut_off_after_it_took_over_a_trial_goes_on_with_what_it_took(sweep: RunFolder) -> None:
    """The crash falls between taking the checkpoint and the next one."""
    _, bad = exploited(sweep, population())
    bad.next()
    bad.reports.close()
    for name in store_of(bad.folder).names()[1:]:
        store_of(bad.folder).storage.delete(name)
    bad.begin(MUTATED)
    assert bad.next().metrics["epoch"] == 2
    assert bad.folder.attempts()[-1].checkpoint == "epoch-0002"


def test_back_to_an_earlier_checkpoint_of_its_own(sweep: RunFolder) -> None:
    trial = ByHand(sweep, population(), 0)
    trial.begin(GOOD)
    trial.next()
    first = trial.session.save()
    trial.next()
    trial.session.save()
    trial.reports.close()
    trial.begin(GOOD, first)
    assert [trial.next().metrics["epoch"] for _ in range(3)] == [1, 2, 3]


def test_a_sweep_s_checkpoints_stay_for_a_while(sweep: RunFolder) -> None:
    trial = ByHand(sweep, population(epochs=SWEEP_KEEPS + 3), 0)
    trial.begin(GOOD)
    for _ in range(SWEEP_KEEPS + 2):
        trial.next()
        trial.session.save()
    store = store_of(trial.folder)
    newest = [f"epoch-{epoch:04d}" for epoch in range(3, SWEEP_KEEPS + 3)]
    assert store.names() == sorted({*newest, store.resolve("best")})


def test_a_checkpoint_that_is_damaged_is_not_adopted(sweep: RunFolder, tmp_path: Path) -> None:
    trial = ByHand(sweep, population(), 0)
    trial.begin(GOOD)
    trial.next()
    path = trial.session.save()
    (Path(path) / "model.pt").write_bytes(b"damaged")
    other = CheckpointStore(Storage(tmp_path / "other"))
    with pytest.raises(CheckpointError, match=r"model.pt is damaged"):
        other.adopt(path)
    with pytest.raises(CheckpointError, match="no checkpoint 'epoch-0009'"):
        other.adopt(path.replace("epoch-0001", "epoch-0009"))
    assert other.names() == []


def _on_rank(
    rank: int, world_size: int, sweep: str, source: ExperimentSource, checkpoint: str | None, count: int
) -> tuple[str, float]:
    session = Session(Assignment(source, sweep, checkpoint=checkpoint), World(rank, world_size, rank))
    reports = session.reports()
    for _ in range(count):
        last = next(reports)
    path = session.save()
    reports.close()
    return path, last.metrics["val/loss"]


def test_two_ranks_save_together_and_take_over_together(sweep: RunFolder) -> None:
    experiment = population(batch_size=4)
    whole, first = (create_run(sweep.storage.location, name, "") for name in ("whole", "first"))
    undisturbed = on_ranks(_on_rank, 2, str(whole), experiment.source, None, 3)
    (path, _), (same, _) = on_ranks(_on_rank, 2, str(first), experiment.source, None, 2)
    assert path == same
    assert {"rank-0000.pt", "rank-0001.pt"} <= set(store_of(first).files(path.rpartition("/")[2]))
    other = create_run(sweep.storage.location, "other", "")
    taken = on_ranks(_on_rank, 2, str(other), experiment.source, path, 1)
    assert [loss for _, loss in taken] == [loss for _, loss in undisturbed]


# Lineage


def exploit(trial: int, source: int, step: int, lr: float) -> Exploit:
    return Exploit(
        "", trial_name(trial), trial_name(source), step, 0, step, 0.0, 1.0, {"optimizer.lr": 0.1}, {"optimizer.lr": lr}
    )


def test_a_lineage_follows_the_weights_back_through_trials() -> None:
    exploits = [
        exploit(1, 0, 10, 0.2),
        exploit(2, 0, 10, 0.3),  # 2 is nobody's ancestor
        exploit(0, 1, 20, 0.4),
        exploit(1, 2, 20, 0.5),  # after 1 was copied: not of 0's weights
        exploit(3, 0, 30, 0.6),
    ]
    assert [one.step for one in lineage(exploits, "trial-0003")] == [10, 20, 30]
    assert [one.after["optimizer.lr"] for one in lineage(exploits, "trial-0003")] == [0.2, 0.4, 0.6]
    assert [one.after["optimizer.lr"] for one in lineage(exploits, "trial-0001")] == [0.3, 0.5]
    assert lineage(exploits, "trial-0004") == []


def test_a_trial_that_took_nothing_is_replayed_as_it_was(sweep: RunFolder) -> None:
    trial = ByHand(sweep, population(), 2)
    trial.begin(BAD)
    again = replay(sweep, population(), "trial-0002")
    assert (again.changes, again.optimizer.arguments["lr"], again.hooks["ema"]["decay"]) == ([], 0.01, 0.9)
    with pytest.raises(UsageError, match="has no trial 'trial-0007'"):
        replay(sweep, population(), "trial-0007")


def test_what_cannot_change_in_flight_cannot_be_replayed(sweep: RunFolder) -> None:
    experiment = population()
    begin_trial(str(sweep), 0, experiment.source, experiment.sweep, {"hooks.ema.evaluate": "raw"})
    begin_trial(str(sweep), 1, experiment.source, experiment.sweep, {"hooks.ema.evaluate": "ema"})
    before, after = ({"hooks.ema.evaluate": value} for value in ("raw", "ema"))
    History(sweep).append(
        trial="trial-0001",
        source="trial-0000",
        report=1,
        epoch=0,
        step=7,
        score=0,
        source_score=1,
        before=before,
        after=after,
    )
    with pytest.raises(ConfigError, match=r"hooks.ema.evaluate: cannot change during training"):
        replay(sweep, population(), "trial-0001")


EXPLOIT = {"source": "trial-0009", "report": 1, "epoch": 0, "step": 7, "score": 0.5, "source_score": 0.25}


def test_what_lies_on_an_object_store_is_read_and_forgotten_too() -> None:
    sweep = RunFolder(f"memory://history-{uuid.uuid4().hex}", "sweep")
    history = History(sweep)
    assert history.read() == []
    for trial in ("trial-0000", "trial-0001", "trial-0002"):
        history.append(trial=trial, before={"lr": 0.1}, after={"lr": 0.2}, **EXPLOIT)
    assert [one.trial for one in history.read()] == ["trial-0000", "trial-0001", "trial-0002"]
    history.forget_unbegun({"trial-0001": {"lr": 0.1}})
    history.append(trial="trial-0003", before={}, after={}, **EXPLOIT)
    assert [one.trial for one in History(sweep).read()] == ["trial-0000", "trial-0002", "trial-0003"]
    sweep.begin("name: sweep\n")
    sweep.end("finished")
    assert sweep.storage.read("population.jsonl").count(b"\n") >= 3, "whoever reads it without us finds it whole"
