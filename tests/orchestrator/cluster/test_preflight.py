"""The preflight, with a stand-in for Ray whose nodes are this process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.preflight import check
from orchestrator.cluster.probe import NodeAnswers
from orchestrator.errors import UsageError
from tests.tasks import described

LATE = "late"


class StandIn:
    """The methods of Ray that a preflight calls. Each node has a change of its answers, or LATE."""

    def __init__(self, **changes: Callable[[NodeAnswers], NodeAnswers] | str | None) -> None:
        self.changes = changes
        self.cancelled: list[Any] = []

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

    def remote(self, *, num_cpus: int, max_retries: int, max_calls: int) -> Any:
        assert (num_cpus, max_retries, max_calls) == (0, 0, 1)

        def options(examine: Callable[..., NodeAnswers]) -> Callable[[Any], Any]:
            def on_node(scheduling_strategy: Any) -> Any:
                assert not scheduling_strategy.soft
                change = self.changes[scheduling_strategy.node_id[0]]
                return type(
                    "Task",
                    (),
                    {"remote": staticmethod(lambda *given: Answer(examine, given, change))},
                )

            return on_node

        return lambda examine: type("Remote", (), {"options": staticmethod(options(examine))})

    def wait(
        self, answers: list[Any], num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(answers)
        return [one for one in answers if one.change != LATE], [
            one for one in answers if one.change == LATE
        ]

    def get(self, answer: Any) -> NodeAnswers:
        answers = answer.examine(*answer.given)
        return answer.change(answers) if answer.change else answers  # type: ignore[no-any-return]

    def cancel(self, answer: Any, *, force: bool) -> None:
        self.cancelled.append(answer)


class Answer:
    def __init__(
        self, examine: Callable[..., NodeAnswers], given: tuple[Any, ...], change: Any
    ) -> None:
        self.examine, self.given, self.change = examine, given, change


def fail(answers: NodeAnswers) -> NodeAnswers:
    raise RuntimeError(
        "ray.exceptions.Something\n\nModuleNotFoundError: No module named 'orchestrator'"
    )


def fail_without_text(answers: NodeAnswers) -> NodeAnswers:
    raise AssertionError


def test_healthy_nodes_pass_and_nothing_is_left_in_the_storage(tmp_path: Path) -> None:
    result = check(str(tmp_path / "runs"), StandIn(a=None, b=None), described(workers={"count": 2}))
    assert result.findings == []
    assert [node.name for node in result.nodes] == ["host-a (127.0.0.1)", "host-b (127.0.0.1)"]
    assert list(tmp_path.iterdir()) == []
    result.raise_errors()


def test_nodes_that_fail_or_do_not_answer_are_named(tmp_path: Path) -> None:
    ray = StandIn(
        a=None,
        b=fail,
        c=LATE,
        d=lambda answers: replace(answers, storage="another folder"),
        e=fail_without_text,
    )
    result = check(str(tmp_path), ray)
    assert [(error.node, error.what) for error in result.errors] == [
        (
            "host-b (127.0.0.1)",
            "did not answer: ModuleNotFoundError: No module named 'orchestrator'",
        ),
        ("host-c (127.0.0.1)", "did not answer: no answer within 120 s"),
        ("host-d (127.0.0.1)", f"cannot read and write storage {tmp_path}: another folder"),
        ("host-e (127.0.0.1)", "did not answer: AssertionError"),
    ]
    assert len(ray.cancelled) == 1
    with pytest.raises(
        UsageError, match=r"(?s)host-b.*host-c.*host-d.*Nothing was started.*--skip-preflight"
    ):
        result.raise_errors()


def test_run_larger_than_the_cluster_gets_a_warning(tmp_path: Path) -> None:
    result = check(str(tmp_path), StandIn(a=None), described(workers={"count": 3}))
    assert [finding.what for finding in result.findings] == [
        "lacks what the run needs: 3 CPUs (it has 2 CPUs)"
    ]
    result.raise_errors()


def test_this_machine_is_checked_without_ray(tmp_path: Path) -> None:
    result = check(str(tmp_path / "runs"))
    assert result.errors == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written from here"):
        check(str(tmp_path / "file/runs"))
