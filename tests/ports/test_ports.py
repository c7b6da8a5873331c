"""Every port equals its raw loop bit for bit: undisturbed, and killed and resumed in training and in validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Experiment, Run, RunError, resume, run
from tests.ports import dcgan, mnist, mnist_rnn, regression, vae, word_language_model
from tests.ports.harness import Fails, Ranks, check

PORTS = {
    "mnist": mnist.PORT,
    "mnist_rnn-lstm": mnist_rnn.LSTM,
    "mnist_rnn-gru": mnist_rnn.GRU,
    "vae": vae.PORT,
    "dcgan": dcgan.PORT,
    "word_language_model-lstm": word_language_model.LSTM,
    "word_language_model-transformer": word_language_model.TRANSFORMER,
    "regression": regression.PORT,
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
    fails = Fails(port.places, str(tmp_path))
    experiment = port.experiment_with({"fails": fails, "checkpoint": {"every": every}})
    failures, done = until_finished(experiment, tmp_path / "runs")
    assert failures == len(port.places.split(", "))
    check(done, port.raw(Ranks()))


def until_finished(experiment: Experiment, storage: Path) -> tuple[int, Run]:
    """Run an experiment and resume it after each failure; return how often it failed."""
    failures = 0
    while True:
        try:
            return failures, resume(storage / experiment.name) if failures else run(experiment, storage, local=True)
        except RunError:
            failures += 1
