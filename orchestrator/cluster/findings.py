"""Findings about the nodes of a cluster, from the answers of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.cluster.probe import Facts, NodeAnswers
from orchestrator.engines.resources import Resources
from orchestrator.units import format_bytes, format_count

MIN_DISK_BYTES = 5 * 2**30
MIN_SHARED_MEMORY_BYTES = 2**30
"""Free bytes below which a node gets a warning."""
Level = Literal["error", "warning"]
"""Severity of a finding; a run does not start after an error."""


@dataclass(frozen=True)
class NodeFinding:
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
    answers: NodeAnswers | None = None
    silence: str | None = None
    """Reason why it did not answer."""
    offered_gpus: float = 0
    """GPUs that Ray may assign there."""


def check_nodes(
    driver: Facts, nodes: Sequence[Node], storage: str, required: Resources, available: Resources
) -> list[NodeFinding]:
    """Return the findings, errors first. `available` are the resources of all nodes together."""
    findings = [*_check_resources(required, available)]
    for node in nodes:
        if node.answers is None:
            findings.append(
                NodeFinding(
                    "error",
                    node.name,
                    f"did not answer: {node.silence}",
                    "Install the same version of the project there, or take the node out of the cluster",
                )
            )
            continue

        findings += _check_versions(driver, node.name, node.answers.facts)
        findings += _check_answers(node.name, node.answers, storage)
        findings += _check_gpus(node, node.answers, required)
        findings += _check_space(node.name, node.answers.facts)
    return sorted(findings, key=lambda finding: finding.level == "warning")


def _check_resources(required: Resources, available: Resources) -> Iterator[NodeFinding]:
    shortages = required.find_shortages(available)
    if not shortages:
        return
    missing = [f"{shortage.needed} (it has {shortage.present})" for shortage in shortages]
    yield NodeFinding(
        "warning",
        "cluster",
        f"lacks what the run needs: {', '.join(missing)}",
        "It waits until an autoscaler adds nodes; without one, use fewer workers or less for each",
    )


def _check_versions(driver: Facts, node: str, facts: Facts) -> Iterator[NodeFinding]:
    for name, here in driver.versions.items():
        there = facts.versions.get(name, "unknown")
        if _strip_build(name, there) == _strip_build(name, here):
            continue

        # Pickles and compiled code do not survive another minor version of Python.
        is_patch = name == "python" and there.split(".")[:2] == here.split(".")[:2]
        yield NodeFinding(
            "warning" if is_patch else "error",
            node,
            f"has {name} {there}, the driver {here}",
            "Install the same everywhere: constraints.txt names every version",
        )


def _strip_build(package: str, version: str) -> str:
    """Return a version of torch without its build, such as `+cpu`: nodes with different GPUs need
    different ones."""
    return version.partition("+")[0] if package == "torch" else version


def _check_answers(node: str, answers: NodeAnswers, storage: str) -> Iterator[NodeFinding]:
    if answers.imports:
        yield NodeFinding(
            "error",
            node,
            f"cannot import the experiment: {answers.imports}",
            "Copy the code there under the same path, install it, or send it with hookyard submit",
        )
    if answers.storage:
        yield NodeFinding(
            "error",
            node,
            f"cannot read and write storage {storage}: {answers.storage}",
            "Use a storage that every node sees, such as s3://bucket/runs or a network folder, "
            "and its keys",
        )


def _check_gpus(node: Node, answers: NodeAnswers, required: Resources) -> Iterator[NodeFinding]:
    gpus = format_count(answers.facts.gpus, "GPU")
    if "GPU" in required.amounts and answers.gpus and node.offered_gpus:
        yield NodeFinding(
            "error",
            node.name,
            f"has {gpus} and {answers.gpus}",
            "Install the torch build for its driver, or start Ray there with --num-gpus=0",
        )
    if answers.facts.gpus > node.offered_gpus:
        yield NodeFinding(
            "warning",
            node.name,
            f"has {gpus} and Ray offers {node.offered_gpus:g}",
            "Start Ray there with --num-gpus, unless this is intended",
        )


def _check_space(node: str, facts: Facts) -> Iterator[NodeFinding]:
    if facts.disk_free_bytes < MIN_DISK_BYTES:
        yield NodeFinding(
            "warning",
            node,
            f"has {format_bytes(facts.disk_free_bytes)} of disk left",
            "Ray and uploads need room for temporary files: free some, or set TMPDIR",
        )

    shared = facts.shared_memory_free_bytes
    if shared is not None and shared < MIN_SHARED_MEMORY_BYTES:
        yield NodeFinding(
            "warning",
            node,
            f"has {format_bytes(shared)} of shared memory left",
            "Data loaders and Ray use /dev/shm: "
            "give a container more (--shm-size, or a memory volume)",
        )
