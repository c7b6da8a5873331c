"""The mark of a failed run on an error, whatever its causes are."""

import pytest

from orchestrator.loop.sharing.failed_run import find_failed_run, mark_failed_run


def test_mark_is_found_on_a_cause() -> None:
    cause, error = KeyError("first"), ValueError("second")
    error.__cause__ = cause
    mark_failed_run(cause, 2)
    assert find_failed_run(error) == 2
    mark_failed_run(error, 1)
    assert find_failed_run(error) == 2, "the run of the cause has failed first"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_may_form_a_cycle(length: int) -> None:
    errors = [ValueError(number) for number in range(length)]
    for error, cause in zip(errors, errors[1:] + errors[:1], strict=True):
        error.__cause__ = cause
    assert find_failed_run(errors[0]) is None
    mark_failed_run(errors[-1], 1)
    assert find_failed_run(errors[0]) == 1
