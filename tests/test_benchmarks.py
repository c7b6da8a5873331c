"""Benchmarks are called by hand; mypy sees that what they take from the project is there."""


def test_the_list_of_wheels_is_what_is_imported() -> None:
    from benchmarks.gpu import (
        wheels,
    )  # not above: benchmarks set the number of threads of their process

    assert wheels.problem() is None
