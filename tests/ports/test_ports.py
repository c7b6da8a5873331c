"""Every port equals its raw loop bit for bit: undisturbed, and killed and resumed in training and
in validation."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator import Run, RunError, resume, run
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.world import World
from tests.ports import imagenet, siamese_network, vae
from tests.ports.harness import Fails, Port, Ranks, check
from tests.ranks import on_ranks, until_killed

PORTS = {"imagenet": imagenet.PORT, "vae": vae.PORT, "siamese_network": siamese_network.PORT}
DRAWING = ("vae", "siamese_network")
"""Ports that draw random numbers in validation, or as samples are fetched there."""


@pytest.mark.parametrize("name", PORTS)
def test_port_equals_its_raw_loop_undisturbed_and_after_two_failures(
    tmp_path: Path, name: str
) -> None:
    port = PORTS[name]
    expected = port.raw(Ranks())
    done = run(port.experiment_with(), tmp_path / "undisturbed", local=True)
    check(done, expected)
    checkpoint = {"every": ("1 epochs", "3 steps")[list(PORTS).index(name) % 2]}
    check(failing_and_resumed(port, port.places, checkpoint, tmp_path / "failing"), expected)
    if name not in DRAWING:
        return
    after_validation = {"every": "0 epochs", "best": "val/loss"}
    places = "train 1 0, train 2 0"
    check(failing_and_resumed(port, places, after_validation, tmp_path / "drawing"), expected)
    last, (again,) = done.reports()[-1], done.evaluate("last").reports()
    drawn = [
        metric
        for metric in expected.reports[-1]
        if metric in again and not metric.startswith("train/")
    ]
    assert "val/loss" in drawn
    assert {metric: again[metric] for metric in drawn} == {metric: last[metric] for metric in drawn}


def failing_and_resumed(port: Port, places: str, checkpoint: dict[str, Any], root: Path) -> Run:
    """Run a port that fails at each of the places, and resume it after each."""
    experiment = port.experiment_with({"fails": Fails(places, str(root)), "checkpoint": checkpoint})
    with pytest.raises(RunError, match="failed on purpose"):
        run(experiment, root, local=True)
    folder = root / experiment.name
    for _ in places.split(", ")[1:]:
        with pytest.raises(RunError, match="failed on purpose"):
            resume(folder)
    return resume(folder)


@pytest.mark.parametrize(
    ("name", "place", "precision"),
    [
        ("vae", "val 1 1", "fp32"),
        ("siamese_network", "train 2 1", "fp32"),
        ("imagenet", "train 1 3", "bf16"),
    ],
)
def test_port_on_two_ranks_equals_the_raw_loop_in_ddp_after_a_kill(
    tmp_path: Path, name: str, place: str, precision: str
) -> None:
    fails = Fails(place, str(tmp_path), is_killed=True)
    experiment = PORTS[name].experiment_with(
        {"fails": fails}, name=name, workers={"count": 2}, precision=precision
    )
    assignment = Assignment(experiment.source, str(create_run(tmp_path, name, to_yaml(experiment))))
    assert -signal.SIGKILL in until_killed(train, 2, assignment)
    on_ranks(train, 2, assignment, name, precision, str(tmp_path))
    for rank in range(2):
        expected = torch.load(tmp_path / f"raw-{rank}.pt", weights_only=False)
        check(Run(RunFolder(assignment.location)), expected, rank)


def train(
    rank: int,
    count: int,
    assignment: Assignment,
    name: str = "",
    precision: str = "",
    folder: str = "",
) -> None:
    for _ in Session(assignment, World(rank, count)).reports():
        pass
    if name:
        dtype = torch.bfloat16 if precision == "bf16" else None
        torch.save(PORTS[name].raw(Ranks(rank, count, dtype)), f"{folder}/raw-{rank}.pt")
