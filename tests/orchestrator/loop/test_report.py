"""Reports that are produced within a context."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from orchestrator.loop.report import Report, produce_within


@pytest.mark.parametrize("thrown", [ValueError, GeneratorExit])
def test_error_of_the_caller_reaches_the_producer_within_the_context(
    thrown: type[BaseException],
) -> None:
    events = []

    @contextmanager
    def context() -> Iterator[None]:
        events.append("enter")
        try:
            yield
        finally:
            events.append("exit")

    def produce() -> Generator[Report, None, None]:
        try:
            yield Report({})
        except BaseException as error:
            events.append(type(error).__name__)
            raise

    reports = produce_within(context, produce())
    next(reports)
    with pytest.raises(thrown):
        reports.throw(thrown())
    assert events == ["enter", "exit", "enter", thrown.__name__, "exit"]
