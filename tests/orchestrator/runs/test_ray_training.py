"""The driver's watch over a training on Ray, without Ray: the mailbox answers when the test says
so."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines import mailbox
from orchestrator.engines.mailbox import DriverMailbox, Line, Mailbox
from orchestrator.runs import ray_training
from orchestrator.runs.ray_training import _show_until_done

Show = Callable[..., list[str]]


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Returns the lines that are shown until the work is done. The mailbox answers each call in
    turn."""

    def shown(work: Future[None], *answers: list[Any] | ActorDied) -> list[str]:
        pending, lines = list(answers), list[str]()

        def collect(stop: bool) -> list[Any] | ActorDied:
            if len(pending) == 2:
                work.set_result(None)
            return pending.pop(0)

        def get(answer: list[Any] | ActorDied) -> list[Any]:
            if isinstance(answer, ActorDied):
                raise answer
            return answer

        actor = SimpleNamespace(collect=SimpleNamespace(remote=collect))
        options = SimpleNamespace(remote=lambda: actor)
        ray = SimpleNamespace(
            exceptions=SimpleNamespace(RayActorError=ActorDied),
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "0" * 56),
            remote=lambda kind: SimpleNamespace(options=lambda **_: options),
            wait=lambda calls, **_: (calls, []),
            get=get,
        )
        monkeypatch.setattr(mailbox, "ray", ray)
        monkeypatch.setattr(ray_training, "POLL_S", 0)
        display: Any = SimpleNamespace(line=lines.append)
        try:
            _show_until_done(work, DriverMailbox(Mailbox), display, lambda: False)
        except ArithmeticError as error:
            lines.append(str(error))
        return lines

    return shown


def test_error_is_raised_after_all_lines_are_shown(shown: Show) -> None:
    work: Future[None] = Future()
    work.set_exception(ArithmeticError("broken"))
    assert shown(work, [Line("last words")]) == ["last words", "broken"]


def test_death_of_the_mailbox_does_not_end_the_run(shown: Show) -> None:
    lines = shown(Future(), [Line("before")], ActorDied(), [Line("after")], [Line("at the end")])
    assert lines == ["before", "after", "at the end"]
