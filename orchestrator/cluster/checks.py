"""Findings about the nodes of a cluster, from their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.cluster.probe import Answers, Facts
from orchestrator.engines.ray_environment import Resources, format_amount, with_unit

MIN_DISK_BYTES = 5 * 2**30
MIN_SHARED_MEMORY_BYTES = 2**30
"""Free bytes below which a node gets a warning."""


Level = Literal["error", "warning"]
"""Severity of a finding; a run does not start after an error."""


@dataclass(frozen=True)
class Finding:
    """A problem of one node, and what to do about it."""

    level: Level
    node: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.node}: {self.what}. {self.advice}"


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    name: str
    answers: Answers | None = None
    silence: str | None = None
    """Reason why it did not answer."""
    offered_gpus: float = 0
    """GPUs that Ray may assign there."""


def check_nodes(
    driver: Facts, nodes: Sequence[Node], storage: str, required: Resources, available: Resources
) -> list[Finding]:
    """Return the findings, errors first. `available` are the resources of all nodes together."""
    findings = [*_check_resources(required, available)]
    for node in nodes:
        if node.answers is None:
            advice = "Install the project there as it is here, or take the node out of the cluster"
            findings.append(Finding("error", node.name, f"did not answer: {node.silence}", advice))
            continue
        findings.extend(_check_versions(driver, node, node.answers.facts))
        findings.extend(_check_answers(node, node.answers, storage, required))
        findings.extend(_check_disk_space(node, node.answers.facts))
    return sorted(findings, key=lambda finding: finding.level == "warning")


def _check_resources(required: Resources, available: Resources) -> Iterator[Finding]:
    short = [
        f"{format_amount(kind, want)} and has {format_amount(kind, have) if have else 'none'}"
        for kind, (want, have) in required.find_missing(available).items()
    ]
    if short:
        advice = "It waits until an autoscaler adds nodes; without one, use fewer workers or less for each"
        yield Finding("warning", "cluster", f"the run asks for {', and for '.join(short)}", advice)


def _check_versions(driver: Facts, node: Node, facts: Facts) -> Iterator[Finding]:
    advice = "Install the same everywhere: constraints.txt names every version"
    for name, here in driver.versions.items():
        there = facts.versions[name]
        if there == here:
            continue
        # Pickles and compiled code do not survive another minor version of Python.
        is_patch = name == "python" and there.split(".")[:2] == here.split(".")[:2]
        level: Level = "warning" if is_patch else "error"
        yield Finding(level, node.name, f"has {name} {there}, the driver {here}", advice)


def _check_answers(node: Node, answers: Answers, storage: str, required: Resources) -> Iterator[Finding]:
    gpus = answers.facts.gpus
    if answers.imports:
        advice = "Copy the code there under the same path, install it, or send it with hookyard submit"
        yield Finding("error", node.name, f"cannot import the experiment: {answers.imports}", advice)
    if answers.storage:
        advice = "Use a storage that every node sees, such as s3://bucket/runs or a network folder, and its keys"
        yield Finding("error", node.name, f"cannot read and write storage {storage}: {answers.storage}", advice)
    if "GPU" in required.amounts and answers.gpus and node.offered_gpus:
        advice = "Install the torch build for its driver, or start Ray there with --num-gpus=0"
        yield Finding("error", node.name, f"has {with_unit(gpus, 'GPU')} and {answers.gpus}", advice)
    if gpus > node.offered_gpus:
        what = f"has {with_unit(gpus, 'GPU')} and Ray offers {node.offered_gpus:g}"
        yield Finding("warning", node.name, what, "Start Ray there with --num-gpus, unless this is intended")


def _check_disk_space(node: Node, facts: Facts) -> Iterator[Finding]:
    if facts.disk_free_bytes < MIN_DISK_BYTES:
        advice = "Ray and uploads need room for temporary files: free some, or set TMPDIR"
        yield Finding("warning", node.name, f"has {_format_gib(facts.disk_free_bytes)} of disk left", advice)
    shared = facts.shared_memory_free_bytes
    if shared is not None and shared < MIN_SHARED_MEMORY_BYTES:
        advice = "Data loaders and Ray use /dev/shm: give a container more (--shm-size, or a memory volume)"
        yield Finding("warning", node.name, f"has {_format_gib(shared)} of shared memory left", advice)


def _format_gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
