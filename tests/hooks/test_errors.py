"""An error's own words."""

from __future__ import annotations

from hooks.errors import describe_error, error_text


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyError("words")


def test_error_text_is_plain_and_short() -> None:
    assert (
        describe_error(ValueError("\x1b[36mray::MapBatches(prepared)\x1b[39m (pid=7)"))
        == "ValueError: ray::MapBatches(prepared) (pid=7)"
    )
    assert error_text(ValueError("x" * 2_001), longest=3) == "xxx... (2,001 characters)"
    assert error_text(Speechless()) == "which has no message: its __str__ raises KeyError"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"
