"""Lists of GitHub keep their levels on the site."""

import markdown

from docs.site.lists import widen_lists

PAGE = """
1. First:

   ```console
   $ command
     output
   ```

2. Second
   * inner
     goes on

   The second goes on.

After the list:

* A bullet
  goes on.

  Its second paragraph.
* Another

    code of four columns

```yaml
- a: 1
  b: 2
```
"""
WIDENED = """
1. First:

    ```console
    $ command
      output
    ```

2. Second
    * inner
        goes on

    The second goes on.

After the list:

* A bullet
    goes on.

    Its second paragraph.
* Another

      code of four columns

```yaml
- a: 1
  b: 2
```
"""


def test_content_is_four_columns_from_its_marker() -> None:
    assert widen_lists(PAGE) == WIDENED


def test_other_text_is_left_alone() -> None:
    assert widen_lists("* a\n\nb\n    c\n") == "* a\n\nb\n    c\n"


def test_python_reads_the_levels_of_github() -> None:
    html = markdown.markdown(widen_lists("1. a\n   * b\n   * c\n2. d\n"))
    assert "".join(html.split()) == "<ol><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ol>"
