from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from hooks import Rhythm, State


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, Rhythm(1, "epochs")),
        (0, Rhythm(0, "epochs")),
        ("3", Rhythm(3, "epochs")),
        ("1 epoch", Rhythm(1, "epochs")),
        (" 2 epochs ", Rhythm(2, "epochs")),
        ("100 steps", Rhythm(100, "steps")),
        ("1 step", Rhythm(1, "steps")),
        (Rhythm(4, "steps"), Rhythm(4, "steps")),
    ],
)
def test_reads(text: Any, expected: Rhythm) -> None:
    assert Rhythm.parse(text) == expected
    assert TypeAdapter(Rhythm).validate_python(text) == expected


@pytest.mark.parametrize("text", [-1, 1.5, True, None, "often", "-2 epochs", "2 minutes", "", "5 iterations"])
def test_refuses_what_is_no_rhythm(text: Any) -> None:
    with pytest.raises(
        ValueError, match="is no rhythm; write a number of epochs such as 1, or '2 epochs', or '100 steps'"
    ):
        Rhythm.parse(text)


@pytest.mark.parametrize("rhythm", [Rhythm(1), Rhythm(2), Rhythm(1, "steps"), Rhythm(100, "steps")])
def test_what_it_prints_it_reads_back(rhythm: Rhythm) -> None:
    assert Rhythm.parse(str(rhythm)) == rhythm


@pytest.mark.parametrize(
    ("count", "begin", "expected"),
    [(2, 5, [5, 7, 9]), (2, 0, [2, 4, 6, 8, 10]), (3, 1, [1, 4, 7, 10]), (1, 9, [9, 10]), (0, 0, []), (0, 3, [])],
)
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_due(count: int, begin: int, expected: list[int], unit: Any) -> None:
    rhythm = Rhythm(count, unit)
    hits = [n for n in range(11) if rhythm.due(State(epoch=n, step=n, stepped=True, epoch_completed=True), begin)]
    assert hits == expected


def test_a_step_is_due_only_in_the_iteration_that_made_it() -> None:
    assert Rhythm(1, "steps").due(State(step=3, stepped=True))
    assert not Rhythm(1, "steps").due(State(step=3, stepped=False, epoch_completed=True))


def test_an_epoch_is_due_only_where_one_was_completed() -> None:
    assert Rhythm(1).due(State(epoch=3, epoch_completed=True))
    assert not Rhythm(1).due(State(epoch=3, epoch_completed=False, stepped=True))
