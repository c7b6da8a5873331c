import pytest

from orchestrator.errors import ConfigError, Problem, find_problems, raise_problems

PROBLEMS = (Problem("epochs", "is missing"), Problem("seed", "must be an integer"))


def test_problems_are_raised_together_and_found_again() -> None:
    with pytest.raises(ConfigError) as raised:
        raise_problems(iter(PROBLEMS))
    assert raised.value.problems == PROBLEMS
    assert tuple(find_problems(raise_problems, PROBLEMS)) == PROBLEMS


def test_nothing_is_raised_or_found_without_problems() -> None:
    raise_problems(iter(()))
    assert list(find_problems(raise_problems, [])) == []


def test_other_errors_are_no_problems() -> None:
    def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        list(find_problems(fail))
