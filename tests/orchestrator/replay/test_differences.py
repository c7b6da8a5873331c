import numpy as np
import pytest

from orchestrator.replay.differences import Difference, find_difference
from orchestrator.replay.training_record import TrainingRecord


@pytest.mark.parametrize("loss", [1.0, float(np.float32(0.1))])
def test_losses_that_hardly_differ_are_told_apart(loss: float) -> None:
    other = float(np.nextafter(loss, 2.0))
    records = [TrainingRecord(samples={1: "same"}, losses={1: value}) for value in (loss, other)]
    assert find_difference(*records) == Difference(
        "loss", f"the loss of iteration 1 is {other!r}, not {loss!r}"
    )


def test_number_that_is_not_one_equals_itself() -> None:
    records = [
        TrainingRecord(
            samples={1: "same"}, losses={1: float("nan")}, metrics={1: {"a": float("nan")}}
        )
        for _ in range(2)
    ]
    assert find_difference(*records) is None


@pytest.mark.parametrize(
    ("name", "value", "other", "differ"),
    [
        ("count", 2, 3, True),
        ("share", 0.5, 0.25, True),
        ("step_s", 0.5, 0.25, False),
        ("memory/rss_bytes", 1, 2, False),
        ("label", "first", "second", False),
    ],
)
def test_numbers_without_a_unit_are_compared(
    name: str, value: object, other: object, differ: bool
) -> None:
    records = [TrainingRecord(metrics={4: {name: metric}}) for metric in (value, other)]
    expected = Difference("metric", f"{name} after iteration 4 is {other}, not {value}")
    assert find_difference(*records) == (expected if differ else None)


def test_end_names_four_values_and_counts_the_others() -> None:
    names = [f"model.layer{number}" for number in range(11)]
    records = [TrainingRecord(end=dict.fromkeys(names, digest)) for digest in ("first", "second")]
    shown = "model.layer0, model.layer1, model.layer2, model.layer3 and 7 more"
    assert find_difference(*records) == Difference("end", f"the end of training differs in {shown}")
