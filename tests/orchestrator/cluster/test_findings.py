"""Findings about nodes whose answers are given."""

from dataclasses import replace

import pytest

from orchestrator.cluster.findings import Level, Node, NodeFinding, check_nodes
from orchestrator.cluster.probe import Facts, NodeAnswers
from orchestrator.engines.resources import Resources

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0", "project": "0.1.0+abc"}
DRIVER = Facts(VERSIONS, gpus=0, disk_free_bytes=100 * 2**30, shared_memory_free_bytes=8 * 2**30)
WITH_GPUS = replace(DRIVER, gpus=4)
SMALL = Resources({"CPU": 2})
BIG = Resources({"CPU": 64, "GPU": 8})


def node(facts: Facts = DRIVER, offered_gpus: float = 0, **problems: str) -> Node:
    return Node("a", NodeAnswers(facts, **problems), offered_gpus=offered_gpus)


def find(
    *nodes: Node, required: Resources = SMALL, available: Resources = BIG
) -> list[NodeFinding]:
    return check_nodes(DRIVER, nodes, "s3://bucket/runs", required, available)


def test_healthy_nodes_give_no_findings() -> None:
    no_shared_memory = replace(DRIVER, shared_memory_free_bytes=None)
    assert (
        find(
            node(),
            node(WITH_GPUS, 4),
            node(no_shared_memory),
            required=Resources({"CPU": 64, "GPU": 8}),
        )
        == []
    )


def test_another_build_of_torch_is_no_finding() -> None:
    other = {**VERSIONS, "torch": f"{VERSIONS['torch'].partition('+')[0]}+cu126"}
    assert find(node(), node(replace(DRIVER, versions=other))) == []


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [
        ("torch", "2.12.0", "error"),
        ("ray", "2.59.0", "error"),
        ("project", "0.1.0+def", "error"),
        ("python", "3.11.2", "warning"),
        ("python", "3.12.7", "error"),
        ("python", "3.1.7", "error"),
    ],
)
def test_version_mismatch_names_both_versions(name: str, version: str, level: Level) -> None:
    (finding,) = find(node(), node(replace(DRIVER, versions={**VERSIONS, name: version})))
    assert (finding.level, finding.what) == (
        level,
        f"has {name} {version}, the driver {VERSIONS[name]}",
    )


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (
            Node("a", silence="no answer within 60 s"),
            "error: a: did not answer: no answer within 60 s",
        ),
        (
            node(imports="no module study"),
            "error: a: cannot import the experiment: no module study",
        ),
        (
            node(storage="not there"),
            "error: a: cannot read and write storage s3://bucket/runs: not there",
        ),
        (node(WITH_GPUS), "warning: a: has 4 GPUs and Ray offers 0"),
        (node(replace(DRIVER, disk_free_bytes=2**30)), "warning: a: has 1 GiB of disk left"),
        (
            node(replace(DRIVER, shared_memory_free_bytes=64 * 2**20)),
            "warning: a: has 64 MiB of shared memory left",
        ),
    ],
)
def test_a_problem_names_the_node_and_gives_advice(node: Node, text: str) -> None:
    (finding,) = find(node)
    assert str(finding).startswith(f"{text}. ")
    assert finding.advice


def test_unusable_gpus_matter_only_if_the_run_needs_gpus() -> None:
    unusable = node(WITH_GPUS, 4, gpus="torch 2.13.0+cpu sees none of them")
    assert find(unusable) == []
    (finding,) = find(unusable, required=Resources({"CPU": 2, "GPU": 2}))
    assert (finding.level, finding.what) == (
        "error",
        "has 4 GPUs and torch 2.13.0+cpu sees none of them",
    )
    assert (
        find(replace(unusable, offered_gpus=0.0), required=Resources({"CPU": 2, "GPU": 2}))[0].level
        == "warning"
    )


def test_missing_resources_are_a_warning_since_an_autoscaler_may_add_nodes() -> None:
    (finding,) = find(
        node(),
        required=Resources({"CPU": 128, "GPU": 9}),
        available=Resources({"CPU": 64, "GPU": 8}),
    )
    assert (finding.level, finding.node) == ("warning", "cluster")
    assert (
        finding.what
        == "lacks what the run needs: 128 CPUs (it has 64 CPUs), 9 GPUs (it has 8 GPUs)"
    )


def test_errors_come_first() -> None:
    levels = [
        finding.level for finding in find(node(WITH_GPUS), node(storage="no"), node(WITH_GPUS))
    ]
    assert levels == ["error", "warning", "warning"]
