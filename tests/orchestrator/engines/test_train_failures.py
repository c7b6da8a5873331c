"""Which failures end a run on Ray Train at once, and what its log says of an attempt that was
lost."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError
from ray.train import ControllerError

from orchestrator.disk.attempts import Attempt, Host
from orchestrator.engines.rank_failures import DIED, RankFailed, format_failure_line
from orchestrator.engines.train_failures import FailureCallback, make_run_error

MISTAKE = RankFailed.from_error(1, 4, TypeError("no"))
LOST = RankFailed.from_error(0, 4, ConnectionError("peer gone"))
GONE = RankFailed.died(1, 4)
ATTEMPTS = [
    Attempt(0, hosts=(Host(0, "alpha"), Host(1, "beta"))),
    Attempt(1, hosts=(Host(0, "alpha"), Host(1, "gamma"))),
]


class Call:
    """A call of an actor, whose answer `ray.get` returns here without Ray."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def remote(self) -> Callable[[], Any]:
        return self._answer


class Queue:
    """The report queue of a run that still trains."""

    should_train = Call(lambda: True)


class DeadQueue:
    """A report queue whose driver was killed."""

    @staticmethod
    def _fail() -> None:
        raise ActorDiedError()

    should_train = Call(_fail)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda answer: answer())


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a controller leaves Ray to end it."""
    waits: list[float] = []
    monkeypatch.setattr("orchestrator.engines.train_failures.sleep", waits.append)
    return waits


def test_user_error_ends_the_run_with_its_own_message() -> None:
    with pytest.raises(RankFailed) as raised:
        FailureCallback(Queue, None, "nowhere", 4).after_exception(None, {0: LOST, 1: MISTAKE})
    assert str(make_run_error(ControllerError(raised.value), 4)) == "rank 1: TypeError: no"


def test_ray_train_retries_other_failures(waited: list[float]) -> None:
    """A controller whose trial was killed must not take places for new workers before Ray ends it
    too."""
    FailureCallback(Queue, None, "nowhere", 4).after_exception(None, {0: LOST})
    FailureCallback(Queue, None, "nowhere", 4).after_exception(
        None, {0: RuntimeError("the process is gone")}
    )
    assert waited == [2.0, 2.0]


def test_nothing_is_restarted_for_a_driver_that_has_died() -> None:
    callback = FailureCallback(DeadQueue, None, "nowhere", 4)
    with pytest.raises(ActorDiedError):
        callback.after_exception(None, {0: LOST})


def test_failure_line_names_attempt_rank_and_node() -> None:
    assert format_failure_line(GONE, []) == f"Failed before it started: rank 1: {DIED}"
    assert format_failure_line(GONE, ATTEMPTS) == f"Rank 1 on gamma failed: {DIED}"
    assert (
        format_failure_line(
            RankFailed.from_error(0, 4, RuntimeError("closed by peer\nand more")), ATTEMPTS[:1]
        )
        == "Rank 0 on alpha failed: RuntimeError: closed by peer"
    )


def test_error_may_name_itself_as_its_cause() -> None:
    error = ValueError("no")
    error.cause = error  # type: ignore[attr-defined]
    assert str(make_run_error(error, 1)) == "no"


def test_failure_of_a_single_rank_does_not_name_it() -> None:
    mistake = RankFailed.from_error(0, 1, TypeError("no"))
    assert str(mistake) == "TypeError: no"
    assert str(RankFailed.died(0, 1)) == DIED
    assert format_failure_line(mistake, []) == "Failed before it started: TypeError: no"
    assert format_failure_line(mistake, ATTEMPTS[:1]) == "Training on alpha failed: TypeError: no"
    assert str(pickle.loads(pickle.dumps(mistake))) == "TypeError: no"


def test_failure_that_cannot_be_shown_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ValueError(f"Failed to look up actor with name '{name}'")

    monkeypatch.setattr(ray, "get_actor", refuse)
    FailureCallback(Queue, "nobody", "nowhere", 4).after_exception(
        None, {0: RuntimeError("the process is gone")}
    )
