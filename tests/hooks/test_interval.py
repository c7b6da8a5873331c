from collections.abc import Iterator
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

from hooks import HOOKS, Interval, State
from hooks.interval import EPOCHS_OR_STEPS, Units, count_iterations
from orchestrator.experiment.fields.parameters import list_parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, Interval(1, "epochs")),
        (0, Interval(0, "epochs")),
        ("3", Interval(3, "epochs")),
        ("1 epoch", Interval(1, "epochs")),
        (" 2 epochs ", Interval(2, "epochs")),
        ("100 steps", Interval(100, "steps")),
        ("1 step", Interval(1, "steps")),
        (Interval(4, "steps"), Interval(4, "steps")),
    ],
)
def test_reads_an_interval(text: Any, expected: Interval) -> None:
    assert Interval.parse(text) == expected
    assert TypeAdapter(Interval).validate_python(text) == expected


@pytest.mark.parametrize(
    "text", [-1, 1.5, True, None, "often", "-2 epochs", "2 minutes", "", "5 iterations"]
)
def test_refuses_an_invalid_interval(text: Any) -> None:
    with pytest.raises(
        ValueError, match="must be a number of epochs or steps, such as '2 epochs' or '100 steps'"
    ):
        Interval.parse(text)


@pytest.mark.parametrize(
    "interval", [Interval(1), Interval(2), Interval(1, "steps"), Interval(100, "steps")]
)
def test_printed_interval_is_read_back(interval: Interval) -> None:
    assert Interval.parse(str(interval)) == interval


@pytest.mark.parametrize(
    ("count", "begin", "expected"),
    [
        (2, 5, [5, 7, 9]),
        (2, 0, [2, 4, 6, 8, 10]),
        (3, 1, [1, 4, 7, 10]),
        (1, 9, [9, 10]),
        (0, 0, []),
        (0, 3, []),
    ],
)
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_due_at_begin_and_then_every_count(
    count: int, begin: int, expected: list[int], unit: Any
) -> None:
    interval = Interval(count, unit)
    hits = [
        n
        for n in range(11)
        if interval.due(State(epoch=n, step=n, stepped=True, epoch_completed=True), begin)
    ]
    assert hits == expected


def test_a_step_is_due_only_in_the_iteration_that_made_it() -> None:
    assert Interval(1, "steps").due(State(step=3, stepped=True))
    assert not Interval(1, "steps").due(State(step=3, stepped=False, epoch_completed=True))


def test_an_epoch_is_due_only_where_one_was_completed() -> None:
    assert Interval(1).due(State(epoch=3, epoch_completed=True))
    assert not Interval(1).due(State(epoch=3, epoch_completed=False, stepped=True))


def test_an_iteration_is_due_only_in_training() -> None:
    """Every iteration of a validation has the same number of training iterations behind it."""
    assert Interval(3, "iterations").due(State(phase="train", iteration=6))
    assert not Interval(3, "iterations").due(State(phase="train", iteration=7))
    assert not Interval(3, "iterations").due(State(phase="val", iteration=6))


def test_iterations_of_the_next_steps_are_those_of_the_epochs() -> None:
    """An epoch's last step may have fewer micro-batches; from each position after a step."""
    for accumulate, length, steps in product(range(1, 4), range(1, 8), range(10)):
        sizes = [min(accumulate, length - start) for start in range(0, length, accumulate)]
        for done in range(len(sizes) + 1):
            expected = sum((sizes * 12)[done : done + steps])
            assert count_iterations(steps, accumulate, length, sum(sizes[:done])) == expected
    assert count_iterations(10, 3, 0, 5) == 30


def find_interval_fields() -> Iterator[tuple[str, str, Units]]:
    """Yield hook, field and units of each interval among the parameters."""
    for name, cls in HOOKS.items():
        hints = get_type_hints(cls, include_extras=True)
        for field in list_parameters(cls):
            parts = get_args(hints[field])
            if hints[field] is Interval or Interval in parts:
                units = [part for part in parts if isinstance(part, Units)]
                yield name, field, units[0] if units else EPOCHS_OR_STEPS


FIELDS = list(find_interval_fields())


def test_every_interval_field_has_units() -> None:
    named = set()
    for name, cls in HOOKS.items():
        named |= {(name, field) for field in ("every", "interval") if field in list_parameters(cls)}
    assert named == {(name, field) for name, field, _ in FIELDS if field == "every"}


@pytest.mark.parametrize(("name", "field", "units"), FIELDS)
def test_every_hook_s_intervals_are_read_with_their_units(
    name: str, field: str, units: Units
) -> None:
    """A bare number has the first of a field's units; what it takes is printed with the unit;
    another is refused."""
    adapter = TypeAdapter(get_type_hints(HOOKS[name], include_extras=True)[field])
    assert adapter.validate_python(3) == adapter.validate_python("3") == Interval(3, units.names[0])
    for unit in ("iterations", "steps", "epochs"):
        if unit in units.names:
            assert adapter.validate_python(f"3 {unit}") == Interval(3, unit)
            assert adapter.dump_python(Interval(3, unit)) == f"3 {unit}"
        else:
            with pytest.raises(ValueError, match="must be a number of"):
                adapter.validate_python(f"3 {unit}")
    if units.ge:
        with pytest.raises(ValueError, match="must be at least 1 "):
            adapter.validate_python(0)
    if units.le:
        with pytest.raises(ValueError, match="must be at most"):
            adapter.validate_python(units.le + 1)
