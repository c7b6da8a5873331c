from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from hooks.duration import Duration, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        ("90s", 90),
        ("10m", 600),
        ("1.5 h", 5400),
        ("1d", 86400),
        (" 1d 12h ", 129600),
        ("2h30m", 9000),
    ],
)
def test_durations_are_read_as_seconds(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds
    assert TypeAdapter(Duration).validate_python(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "2", "30m2h", "-1h", "0h", "two hours", "01:30:00", 0, -1, True, None, float("inf")],
)
def test_invalid_duration_error_has_the_value(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a positive duration"):
        parse_duration(value)
    with pytest.raises(ValidationError, match="90s, 5m or 2h30m, got"):
        TypeAdapter(Duration).validate_python(value)
