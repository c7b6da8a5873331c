"""Types of fields as text."""

import hooks
from hooks.interval import Interval, Iterations, Steps, StepsOrNever
from orchestrator.experiment.fields.type_names import format_type
from orchestrator.experiment.hook_reference import describe_hook


def test_types_are_formatted_for_people() -> None:
    said = {
        (name, one["name"]): one["type"]
        for name, cls in hooks.HOOKS.items()
        for one in describe_hook(name, cls)["parameters"]
    }
    assert said["swav", "assigned_views"] == "list[int >= 0]"
    assert said["checkpoint", "keep"] == "int >= 1 | null"
    assert said["console", "window"] == "int >= 1 | line | epoch | global"
    assert said["profiler", "activities"] == "tuple[cpu | cuda, ...] | null"
    assert said["checkpoint", "best"] == "str | list[str] | null"
    assert not [
        text
        for text in said.values()
        if "typing" in text or "Annotated" in text or "NoneType" in text
    ]


def test_an_interval_names_its_units() -> None:
    """A file may use no others."""
    assert format_type(Interval) == "Interval in epochs or steps"
    assert format_type(Steps) == "Interval in steps >= 1"
    assert format_type(StepsOrNever | None) == "Interval in steps >= 0 | null"
    assert format_type(Iterations) == "Interval in iterations or steps >= 1"
