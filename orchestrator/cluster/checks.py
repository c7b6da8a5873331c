"""The checks: what the nodes answered, and what is wrong with it. Pure: data in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.cluster.probe import Facts
from orchestrator.engines.ray_environment import Resources, amount_in_words, with_unit

DISK_BYTES = 5 * 2**30
SHARED_MEMORY_BYTES = 2**30
CLOCK_S = 1.0
"""Limits of the warnings: what a small run needs, and how far apart times may lie before their order misleads."""


class Level(StrEnum):
    """How bad a finding is: an error ends the run before it begins."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, what, and what to do."""

    level: Level
    node: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.node}: {self.what}. {self.advice}"


@dataclass(frozen=True)
class Node:
    """A node, as it answered; None stands for a question that was not asked or whose answer is that all is well."""

    name: str
    facts: Facts | None = None
    silence: str | None = None
    """Why it did not answer."""
    offered_gpus: float = 0
    """What Ray may give away there."""
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0
    imports: str | None = None
    gpus: str | None = None
    storage: str | None = None
    neighbour: str | None = None
    """The node it was to connect to."""
    connection: str | None = None


def findings(driver: Facts, nodes: Sequence[Node], storage: str, asked: Resources, present: Resources) -> list[Finding]:
    """What is wrong, errors first. `driver` is the machine that drives the run, `present` what all nodes offer
    together."""
    found = [*_together(asked, present)]
    for node in nodes:
        if node.facts is None:
            found.append(Finding(Level.ERROR, node.name, f"did not answer: {node.silence}", _SILENCE))
            continue
        found.extend([*_versions(driver, node, node.facts), *_answers(node, storage, asked), *_room(node, node.facts)])
    return sorted(found, key=lambda finding: finding.level is Level.WARNING)


_SILENCE = "Install the project there as it is here, or take the node out of the cluster"


def _together(asked: Resources, present: Resources) -> Iterator[Finding]:
    short = [
        f"{amount_in_words(kind, want)} and has {amount_in_words(kind, have) if have else 'none'}"
        for kind, (want, have) in asked.beyond(present).items()
    ]
    if short:
        advice = "It waits until an autoscaler brings more; without one, ask for fewer workers or less of each"
        yield Finding(Level.WARNING, "cluster", f"the run asks for {', and for '.join(short)}", advice)


def _versions(driver: Facts, node: Node, facts: Facts) -> Iterator[Finding]:
    for name, here in driver.versions.items():
        there = facts.versions[name]
        if there == here:
            continue
        # Pickles and compiled code cross from one minor version of Python to another no better than torch's own files.
        same = name == "python" and there.split(".")[:2] == here.split(".")[:2]
        level = Level.WARNING if same else Level.ERROR
        yield Finding(
            level,
            node.name,
            f"has {name} {there}, the driver {here}",
            "Install the same everywhere: constraints.txt names every version",
        )


def _answers(node: Node, storage: str, asked: Resources) -> Iterator[Finding]:
    if node.imports:
        advice = "Copy the code there under the same path, install it, or send it along with hookyard submit"
        yield Finding(Level.ERROR, node.name, f"cannot import the experiment: {node.imports}", advice)
    if node.storage:
        advice = (
            "Give a storage that every node sees under one name, such as s3://bucket/runs or a network folder, and the"
            " keys for it"
        )
        yield Finding(Level.ERROR, node.name, f"cannot read and write storage {storage}: {node.storage}", advice)
    if node.connection:
        advice = (
            "Ranks on both would never form a process group: open the ports of /proc/sys/net/ipv4/ip_local_port_range"
            " between all nodes"
        )
        yield Finding(Level.ERROR, node.name, f"cannot connect to {node.neighbour}: {node.connection}", advice)
    assert node.facts is not None
    if asked.gpus and node.gpus and node.offered_gpus:
        advice = "Install the torch that fits its driver, or start Ray there with --num-gpus=0"
        yield Finding(Level.ERROR, node.name, f"has {with_unit(node.facts.gpus, 'GPU')} and {node.gpus}", advice)
    if node.facts.gpus > node.offered_gpus:
        advice = "Start Ray there with --num-gpus, unless they are left out on purpose"
        yield Finding(
            Level.WARNING,
            node.name,
            f"has {with_unit(node.facts.gpus, 'GPU')} and Ray offers {node.offered_gpus:g}",
            advice,
        )


def _room(node: Node, facts: Facts) -> Iterator[Finding]:
    if facts.disk_free_bytes < DISK_BYTES:
        advice = "Ray and what is sent to a storage need room for temporary files: free some, or set TMPDIR"
        yield Finding(Level.WARNING, node.name, f"has {_gib(facts.disk_free_bytes)} of disk left", advice)
    shared = facts.shared_memory_free_bytes
    if shared is not None and shared < SHARED_MEMORY_BYTES:
        advice = (
            "Data loaders and Ray's object store live in /dev/shm: in a container give it more (--shm-size, or a memory"
            " volume)"
        )
        yield Finding(Level.WARNING, node.name, f"has {_gib(shared)} of shared memory left", advice)
    if abs(node.clock_offset_s) - node.clock_error_s > CLOCK_S:
        advice = "Times of different nodes in logs and tables do not go together: let NTP set the clocks"
        yield Finding(Level.WARNING, node.name, f"has a clock {node.clock_offset_s:+.1f} s from the driver's", advice)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
