from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cluster.checks import Finding, Level, Node, check_nodes
from orchestrator.cluster.probe import Facts
from orchestrator.engines.ray_environment import Resources

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0", "project": "0.1.0+abc"}
DRIVER = Facts(VERSIONS, gpus=0, disk_free_bytes=100 * 2**30, shared_memory_free_bytes=8 * 2**30)
WITH_GPUS = replace(DRIVER, gpus=4)
FIT = Node("a", DRIVER)
SMALL, BIG = Resources(2), Resources(64, 8)


def found(*nodes: Node, asked: Resources = SMALL, present: Resources = BIG) -> list[Finding]:
    return check_nodes(DRIVER, nodes, "s3://bucket/runs", asked, present)


def test_nodes_that_are_fit_give_no_findings() -> None:
    assert found(FIT, Node("b", WITH_GPUS, offered_gpus=4, clock_offset_s=0.9), asked=Resources(64, 8)) == []


@pytest.mark.parametrize("name", ["torch", "ray", "project"])
def test_another_version_is_an_error_that_names_node_and_both(name: str) -> None:
    (one,) = found(FIT, Node("b", replace(DRIVER, versions={**VERSIONS, name: "other"})))
    assert (one.level, one.node) == (Level.ERROR, "b")
    assert one.what == f"has {name} other, the driver {VERSIONS[name]}"


@pytest.mark.parametrize(
    ("python", "level"), [("3.11.2", Level.WARNING), ("3.12.7", Level.ERROR), ("3.1.7", Level.ERROR)]
)
def test_of_python_the_minor_version_must_be_the_same(python: str, level: Level) -> None:
    assert [one.level for one in found(Node("b", replace(DRIVER, versions={**VERSIONS, "python": python})))] == [level]


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (Node("b", silence="no answer within 60 s"), "error: b: did not answer: no answer within 60 s"),
        (replace(FIT, imports="no module study"), "error: a: cannot import the experiment: no module study"),
        (replace(FIT, storage="not there"), "error: a: cannot read and write storage s3://bucket/runs: not there"),
        (replace(FIT, neighbour="b", connection="timed out"), "error: a: cannot connect to b: timed out"),
        (replace(FIT, facts=WITH_GPUS), "warning: a: has 4 GPUs and Ray offers 0"),
        (replace(FIT, facts=replace(DRIVER, disk_free_bytes=2**30)), "warning: a: has 1.0 GiB of disk left"),
        (
            replace(FIT, facts=replace(DRIVER, shared_memory_free_bytes=64 * 2**20)),
            "warning: a: has 0.1 GiB of shared memory left",
        ),
        (replace(FIT, clock_offset_s=-3.2, clock_error_s=0.1), "warning: a: has a clock -3.2 s from the driver's"),
    ],
)
def test_what_is_wrong_is_told_with_node_and_advice(node: Node, told: str) -> None:
    (one,) = found(node)
    assert str(one).startswith(f"{told}. ")
    assert one.advice


def test_a_clock_is_not_blamed_for_a_slow_answer() -> None:
    assert found(replace(FIT, clock_offset_s=3.0, clock_error_s=2.5)) == []


def test_no_shared_memory_at_all_is_no_finding() -> None:
    assert found(replace(FIT, facts=replace(DRIVER, shared_memory_free_bytes=None))) == []


def test_gpus_that_torch_cannot_use_matter_to_a_run_that_asks_for_some() -> None:
    node = Node("a", WITH_GPUS, offered_gpus=4, gpus="torch 2.13.0+cpu sees none of them")
    assert found(node, asked=Resources(2)) == []
    (one,) = found(node, asked=Resources(2, 2))
    assert one.what == "has 4 GPUs and torch 2.13.0+cpu sees none of them"
    assert found(replace(node, offered_gpus=0.0), asked=Resources(2, 2))[0].level is Level.WARNING, (
        "it gets no rank that needs one"
    )


def test_asking_for_more_than_there_is_waits_for_the_autoscaler() -> None:
    (one,) = found(FIT, asked=Resources(128, 9), present=Resources(64, 8))
    assert (one.level, one.node) == (Level.WARNING, "cluster")
    assert one.what == "the run asks for 128 CPUs and has 64 CPUs, and for 9 GPUs and has 8 GPUs"


def test_errors_come_first() -> None:
    levels = [
        one.level
        for one in found(replace(FIT, clock_offset_s=9), replace(FIT, storage="no"), replace(FIT, clock_offset_s=9))
    ]
    assert levels == [Level.ERROR, Level.WARNING, Level.WARNING]
