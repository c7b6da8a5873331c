"""The driver's watch over its workers, without Ray: calls of the mailbox are answered when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runs.driver import Outcome, _watch


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


class Slow:
    """Stands in for Ray, the mailbox and the work: each round says how many more of the calls are answered."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self, *rounds: tuple[int, list[Any]]) -> None:
        self.rounds = list(rounds)
        self.asked = self.answered = self.over_after = 0
        self.answers: list[Any] = []
        self.wishes: list[bool] = []
        self.collect = SimpleNamespace(remote=self._ask)

    def _ask(self, stop: bool) -> int:
        self.wishes.append(stop)
        self.asked += 1
        return self.asked - 1

    def over(self, timeout_s: float) -> bool:
        count, answers = self.rounds.pop(0)
        self.answered += count
        self.answers += answers
        return not self.rounds

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [call for call in calls if call < self.answered], [call for call in calls if call >= self.answered]

    def get(self, call: int) -> Any:
        if isinstance(self.answers[call], Exception):
            raise self.answers[call]
        return self.answers[call]


def watched(slow: Slow, interrupts: Any = None) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    display: Any = SimpleNamespace(line=lines.append, progress=lambda *news: None)
    outcome = _watch(slow, slow, slow, display, interrupts or SimpleNamespace(asked=False))
    return outcome, lines


def test_what_a_slow_mailbox_answers_late_is_shown_all_the_same() -> None:
    slow = Slow((0, []), (0, []), (2, [[("line", "first")], [("line", "second")]]), (2, [[("ended", ["enough"], False)], []]))
    assert watched(slow) == (Outcome(("enough",), False), ["first", "second"])


@pytest.mark.parametrize("after", [[], [("line", "back again")]])
def test_a_mailbox_that_died_takes_its_news_along_and_not_the_run(after: list[Any]) -> None:
    outcome, lines = watched(Slow((1, [[("line", "before")]]), (1, [ActorDied()]), (1, [after])))
    assert (outcome.status, lines) == ("finished", ["before", *(text for _, text in after)])


def test_a_wish_to_stop_is_told_with_every_call_as_a_mailbox_that_died_has_forgotten_it() -> None:
    class Asked:
        polls = iter([False, True, True])

        @property
        def asked(self) -> bool:
            return next(self.polls)

    slow = Slow((1, [[]]), (1, [ActorDied()]), (1, [[]]))
    watched(slow, Asked())
    assert slow.wishes == [False, True, True]
