"""The gathering, with a stand-in for Ray whose nodes are objects of this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.preflight import check_cluster, check_this_machine
from orchestrator.errors import UsageError
from tests.tasks import described


class StandIn:
    """As much of Ray as a preflight uses. Answers are calls that are made when they are fetched."""

    def __init__(self, **changes: dict[str, Any]) -> None:
        self.changes = changes
        self.killed: list[Any] = []

    def nodes(self) -> list[dict[str, Any]]:
        known = [
            {
                "NodeID": node * 56,
                "NodeManagerHostname": f"host-{node}",
                "NodeManagerAddress": "127.0.0.1",
                "Alive": True,
                "Resources": {"CPU": 2.0},
            }
            for node in self.changes
        ]
        return [*known, {"NodeID": "gone", "Alive": False}]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0 * len(self.changes)}

    def remote(self, cls: type) -> Any:
        ray = self

        class Remote:
            def options(self, *, num_cpus: int, scheduling_strategy: Any) -> Any:
                assert (num_cpus, scheduling_strategy.soft) == (0, False)
                changes = ray.changes[scheduling_strategy.node_id[0]]
                made = type(
                    "Changed",
                    (cls,),
                    {
                        name: lambda self, *_, value=value: value() if callable(value) else value
                        for name, value in changes.items()
                    },
                )
                return type("Starter", (), {"remote": staticmethod(lambda: Handle(made()))})

        return Remote()

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(answers)
        return [answer for answer in answers if not answer.late], [answer for answer in answers if answer.late]

    def get(self, answer: Any) -> Any:
        return answer.call()

    def kill(self, handle: Any) -> None:
        self.killed.append(handle)


class Answer:
    def __init__(self, call: Any, late: bool) -> None:
        self.call, self.late = call, late


class Handle:
    """An actor's handle: every method has a `remote` whose answer may be late."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method, late = getattr(self._actor, name), getattr(self._actor, "late", None)
        return type(
            "Method", (), {"remote": staticmethod(lambda *given: Answer(lambda: method(*given), late is not None))}
        )


def fails() -> None:
    raise RuntimeError("ray.exceptions.Something\n\nModuleNotFoundError: No module named 'orchestrator'")


def test_nodes_that_are_fit_are_left_as_they_were(tmp_path: Path) -> None:
    ray = StandIn(a={}, b={})
    looked = check_cluster(ray, str(tmp_path / "runs"), described(workers={"count": 2}))
    assert looked.findings == []
    assert [node.name for node in looked.nodes] == ["host-a (127.0.0.1)", "host-b (127.0.0.1)"]
    assert [node.neighbour for node in looked.nodes] == ["host-b (127.0.0.1)", "host-a (127.0.0.1)"]
    assert all(abs(node.clock_offset_s) <= node.clock_error_s + 1e-3 for node in looked.nodes)
    assert len(ray.killed) == 2
    assert list(tmp_path.iterdir()) == []
    looked.raise_errors()


def test_a_node_that_is_silent_and_one_that_fails_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    ray = StandIn(a={}, b={"facts": fails}, c={"late": 1}, d={"check_storage": "another folder"})
    looked = check_cluster(ray, str(tmp_path))
    assert [(error.node, error.what) for error in looked.errors] == [
        ("host-b (127.0.0.1)", "did not answer: ModuleNotFoundError: No module named 'orchestrator'"),
        ("host-c (127.0.0.1)", "did not answer: no answer within 60 s"),
        ("host-d (127.0.0.1)", f"cannot read and write storage {tmp_path}: another folder"),
    ]
    with pytest.raises(UsageError, match=r"(?s)host-b.*host-c.*host-d.*Nothing was started.*--skip-preflight"):
        looked.raise_errors()


def test_a_node_that_fails_without_a_word_is_told_with_the_error_s_class(tmp_path: Path) -> None:
    def speechless() -> None:
        raise AssertionError

    looked = check_cluster(StandIn(a={}, b={"facts": speechless}), str(tmp_path))
    assert [error.what for error in looked.errors] == ["did not answer: AssertionError"]


def test_a_clock_that_is_wrong_is_measured(tmp_path: Path) -> None:
    looked = check_cluster(StandIn(a={"clock": lambda: time.time() - 100}), str(tmp_path))
    assert looked.nodes[0].clock_offset_s == pytest.approx(-100, abs=0.5)
    assert ["clock" in finding.what for finding in looked.findings] == [True]


def test_nodes_on_one_host_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandIn(a={}, b={})
    nodes = ray.nodes()
    monkeypatch.setattr(ray, "nodes", lambda: [{**node, "NodeManagerHostname": "host"} for node in nodes])
    assert [node.name for node in check_cluster(ray, str(tmp_path)).nodes] == [
        "host (127.0.0.1, aaaaaa)",
        "host (127.0.0.1, bbbbbb)",
    ]


def test_more_than_the_cluster_has_is_a_warning(tmp_path: Path) -> None:
    looked = check_cluster(StandIn(a={}), str(tmp_path), described(workers={"count": 3}))
    assert [finding.what for finding in looked.findings] == ["the run asks for 3 CPUs and has 2 CPUs"]
    looked.raise_errors()


def test_this_machine_is_looked_at_without_ray(tmp_path: Path) -> None:
    looked = check_this_machine(str(tmp_path / "runs"))
    assert looked.errors == []
    assert looked.nodes[0].storage is None
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_the_driver_itself_cannot_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written from here"):
        check_this_machine(str(tmp_path / "file/runs"))
