"""Lists of GitHub keep their levels on the site."""

import markdown
import pytest

from docs.site.lists import widen_lists


@pytest.mark.parametrize(
    ("page", "widened"),
    [
        ("1. a\n\n   b\n", "1. a\n\n    b\n"),
        ("* a\n  b\n\nc\n", "* a\n    b\n\nc\n"),
        ("* a\n  * b\n    c\n\n  d\n", "* a\n    * b\n        c\n\n    d\n"),
        ("1. a\n   ```\n   b\n     c\n   ```\n", "1. a\n    ```\n    b\n      c\n    ```\n"),
        ("* a\n\n      b\n", "* a\n\n        b\n"),
    ],
    ids=["numbers", "bullets", "levels", "fenced code", "indented code"],
)
def test_content_is_four_columns_from_its_marker(page: str, widened: str) -> None:
    assert widen_lists(page) == widened


@pytest.mark.parametrize("page", ["* a\n\nb\n    c\n", "```yaml\n- a: 1\n  b: 2\n```\n"])
def test_other_text_is_left_alone(page: str) -> None:
    assert widen_lists(page) == page


def test_python_reads_the_levels_of_github() -> None:
    html = markdown.markdown(widen_lists("1. a\n   * b\n   * c\n2. d\n"))
    assert "".join(html.split()) == "<ol><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ol>"
