"""Every port equals its raw loop bit for bit: undisturbed, and killed and resumed in training and in validation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from orchestrator import Experiment, Run, RunError, resume, run
from orchestrator.config.load import to_yaml
from orchestrator.engines.session import Assignment, Session
from orchestrator.loop.world import World
from orchestrator.records.run_folder import RunFolder
from tests.ports import (
    dcgan,
    mnist,
    mnist_rnn,
    regression,
    reinforcement_learning,
    siamese_network,
    super_resolution,
    vae,
    word_language_model,
)
from tests.ports.harness import Fails, Ranks, check
from tests.ranks import on_ranks, until_killed

PORTS = {
    "mnist": mnist.PORT,
    "mnist_rnn-lstm": mnist_rnn.LSTM,
    "mnist_rnn-gru": mnist_rnn.GRU,
    "vae": vae.PORT,
    "dcgan": dcgan.PORT,
    "word_language_model-lstm": word_language_model.LSTM,
    "word_language_model-transformer": word_language_model.TRANSFORMER,
    "regression": regression.PORT,
    "reinforcement_learning": reinforcement_learning.PORT,
    "siamese_network": siamese_network.PORT,
    "super_resolution": super_resolution.PORT,
}


@pytest.mark.parametrize("name", PORTS)
def test_a_port_is_its_raw_loop_bit_for_bit(tmp_path: Path, name: str) -> None:
    port = PORTS[name]
    check(run(port.experiment_with(), tmp_path, local=True), port.raw(Ranks()))


@pytest.mark.parametrize("every", ["1 epochs", "3 steps"])
@pytest.mark.parametrize("name", PORTS)
def test_so_is_one_that_fails_in_training_and_in_validation_and_is_resumed(
    tmp_path: Path, name: str, every: str
) -> None:
    port = PORTS[name]
    fails = port.fails(port.places, str(tmp_path))
    experiment = port.experiment_with({"fails": fails, "checkpoint": {"every": every}})
    failures, done = until_finished(experiment, tmp_path / "runs")
    assert failures == len(port.places.split(", "))
    check(done, port.raw(Ranks()))


def test_a_port_in_bfloat16_is_its_raw_loop_under_autocast(tmp_path: Path) -> None:
    done = run(mnist.PORT.experiment_with(precision="bf16"), tmp_path, local=True)
    check(done, mnist.raw(Ranks(dtype=torch.bfloat16)))


@pytest.mark.parametrize(
    ("name", "place"), [("mnist", "train 1 2"), ("vae", "val 1 1"), ("siamese_network", "train 2 1")]
)
def test_a_port_on_two_ranks_that_is_killed_is_the_raw_loop_in_ddp(tmp_path: Path, name: str, place: str) -> None:
    port = PORTS[name]
    fails = Fails(place, str(tmp_path), is_killed=True)
    experiment = port.experiment_with({"fails": fails}, name=name, workers={"count": 2})
    assignment = Assignment(experiment.source, str(RunFolder.create(tmp_path, name, to_yaml(experiment))))
    assert -signal.SIGKILL in until_killed(train, 2, assignment)
    on_ranks(train, 2, assignment, name, str(tmp_path))
    for rank in range(2):
        expected = torch.load(tmp_path / f"raw-{rank}.pt", weights_only=False)
        check(Run(RunFolder(assignment.location)), expected, rank)


def train(rank: int, count: int, assignment: Assignment, name: str = "", folder: str = "") -> None:
    for _ in Session(assignment, World(rank, count)).reports():
        pass
    if name:
        torch.save(PORTS[name].raw(Ranks(rank, count)), f"{folder}/raw-{rank}.pt")


@pytest.mark.parametrize("name", ["vae", "dcgan", "siamese_network"])
def test_evaluating_the_last_checkpoint_draws_what_the_run_drew(tmp_path: Path, name: str) -> None:
    done = run(PORTS[name].experiment_with(), tmp_path, local=True)
    last, (again,) = done.reports()[-1], done.evaluate("last").reports()
    expected = PORTS[name].raw(Ranks()).reports[-1]
    drawn = [metric for metric in expected if metric in again and not metric.startswith("train/")]
    assert "val/loss" in drawn
    assert {metric: again[metric] for metric in drawn} == {metric: last[metric] for metric in drawn}


def until_finished(experiment: Experiment, storage: Path) -> tuple[int, Run]:
    """Run an experiment and resume it after each failure; return how often it failed."""
    failures = 0
    while True:
        try:
            return failures, resume(storage / experiment.name) if failures else run(experiment, storage, local=True)
        except RunError:
            failures += 1
