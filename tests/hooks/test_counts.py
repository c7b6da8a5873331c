"""Numbers of things in text."""

from hooks.counts import format_count


def test_one_thing_has_no_plural() -> None:
    texts = [format_count(number, "epoch") for number in (0, 1, 2, 1234)]
    assert texts == ["0 epochs", "1 epoch", "2 epochs", "1,234 epochs"]


def test_part_of_a_thing_has_a_fraction() -> None:
    texts = [format_count(number, "GPU") for number in (0.25, 1.0, 1.5, 2.0)]
    assert texts == ["0.25 GPUs", "1 GPU", "1.5 GPUs", "2 GPUs"]
