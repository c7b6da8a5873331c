"""Changes during a run: when they may happen."""

import pytest

from tests.orchestrator.experiment.samples import refusal


@pytest.mark.parametrize(("at", "length"), [(1, "1 epoch"), (3, "2 epochs")])
def test_change_must_come_before_the_end_of_the_run(at: int, length: str) -> None:
    message = refusal(
        epochs=int(length[0]), changes=[{"at": at, "set": {"optimizer.lr": 0.5}}]
    ).partition(",")[0]
    assert message == f"changes.0.at: must be less than the run's {length}"
