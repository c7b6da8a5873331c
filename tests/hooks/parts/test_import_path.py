import math

import pytest

from hooks.parts.import_path import callable_at


def test_a_path_names_a_callable() -> None:
    assert callable_at("math:sqrt", "teacher") is math.sqrt


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("math.sqrt", "teacher: 'math.sqrt' cannot be imported .* write module:callable"),
        ("math:root", "has no attribute 'root'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        (":f", "cannot be imported"),
        ("math:pi", "teacher: 'math:pi' is float, not a callable"),
    ],
)
def test_what_it_cannot_find_or_call_is_an_error_with_the_field(path: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        callable_at(path, "teacher")
