"""The site in a browser: nothing is wider than a phone, and the copy button takes the commands
alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.browser import CHROMIUM, inspect_pages

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

PAGE = """# Page

> [!WARNING]
> Mind the *gap*.

```console
$ hookyard init spirals
wrote spirals.py

wrote spirals.yaml
$ hookyard run spirals.yaml \\
    --local
...
```

1. First:

   ```python
   answer = 1
   ```

2. Second, with [a link](../pyproject.toml):
   * Inner
"""
WIDE = f"""# Wide

| {"column " * 20} | {"a_very_long_name" * 9} |
| --- | --- |
| `{"code" * 60}` | {"text " * 60} |

```python
{"wide = 1; " * 40}
```
"""
LOOK = """(() => {
  const find = (selector) => [...document.querySelectorAll(`.md-content ${selector}`)];
  const code = find(".language-console code")[0];
  if (code) code.setAttribute("data-md-copying", "");
  return {
    width: document.scrollingElement.scrollWidth,
    copied: code && code.innerText,
    warnings: find(".admonition.warning").map((box) => box.innerText),
    items: find("ol > li").length,
    inner: find("ol > li > ul > li").length,
    codeInItem: find("ol > li code").length,
    links: find("ol a").map((link) => link.href),
  };
})()"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """What each page looks like, by its name and width."""
    docs, site = (tmp_path_factory.mktemp(name) for name in ("docs", "site"))
    (docs / "README.md").write_text(PAGE)
    (docs / "wide.md").write_text(WIDE)
    (docs / "site").mkdir()
    shutil.copy(ROOT / "docs" / "site" / "site.css", docs / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(
            load_config(
                str(ROOT / "mkdocs.yml"),
                docs_dir=str(docs),
                site_dir=str(site),
                nav=["README.md", "wide.md"],
                strict=True,
            )
        )
    pages = {"page": site / "index.html", "wide": site / "wide" / "index.html"}
    views = [(name, width) for name in pages for width in (400, 1400)]
    answers, _ = inspect_pages([(pages[name], width) for name, width in views], LOOK)
    return dict(zip(views, answers, strict=True))


def test_no_page_is_wider_than_its_window(seen: dict[tuple[str, int], Any]) -> None:
    assert {view: answer["width"] for view, answer in seen.items()} == {
        view: view[1] for view in seen
    }


def test_copy_button_takes_the_commands(seen: dict[tuple[str, int], Any]) -> None:
    copied = seen["page", 1400]["copied"]
    lines = [line for line in copied.splitlines() if line]
    assert lines == ["hookyard init spirals", "hookyard run spirals.yaml \\", "    --local"]


def test_admonitions_and_lists_of_github_are_rendered(seen: dict[tuple[str, int], Any]) -> None:
    page = seen["page", 1400]
    assert [text.split() for text in page["warnings"]] == [["Warning", "Mind", "the", "gap."]]
    assert (page["items"], page["inner"], page["codeInItem"]) == (2, 1, 1)
    (link,) = page["links"]
    assert link.endswith("/blob/main/pyproject.toml")
