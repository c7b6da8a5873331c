"""What MkDocs calls for each page: it fills in the reference and resolves links to other files."""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# The console script of MkDocs does not look for packages in the current folder.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs.site.lists import widen_lists  # noqa: E402
from docs.site.reference import GENERATORS  # noqa: E402

_GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_PYTHON = re.compile(r"^<!-- python: (\S+)(?: without (\w+))? -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?P<target>\.\.?/[^)#\s]*)(?=[)#\s])")
_FENCE = re.compile(r"(^[ >]*```.*?^[ >]*```)", re.DOTALL | re.MULTILINE)


_SEARCH_BOOSTS = {"reference/": 0.5, "migrating/": 0.2}
"""Weights of pages that name everything, so that a search finds others first."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its generated parts, and with links to files that only the repository
    has."""
    for folder, boost in _SEARCH_BOOSTS.items():
        if page.file.src_uri.startswith(folder):
            page.meta["search"] = {"boost": boost}
    parts = _FENCE.split(markdown)
    # Every second part is a block of code.
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(
            lambda link: _resolve(link["target"], page, config.repo_url or ""), parts[index]
        )
    text = widen_lists("".join(parts))
    text = _PYTHON.sub(_refer_to_python, text)
    return _GENERATED.sub(lambda mark: _generate(mark[1], page), text)


def _generate(name: str, page: Page) -> str:
    if name not in GENERATORS:
        raise PluginError(f"{page.file.src_uri}: nothing generates '{name}'")
    return GENERATORS[name]()


def _refer_to_python(mark: re.Match[str]) -> str:
    """Return what mkdocstrings replaces by the docstrings of a Python name. GitHub would show it, so
    the page has a comment instead."""
    without = {
        "constructor": "merge_init_into_class: false",
        "members": "members: false\n      merge_init_into_class: false",
    }
    options = f"\n    options:\n      {without[mark[2]]}" if mark[2] else ""
    return f"::: {mark[1]}{options}\n"


def _resolve(target: str, page: Page, repository: str) -> str:
    """Return a link of a page; if it leaves the folder docs, the file's address in the
    repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("docs/"):
        return target
    if not (ROOT / path).exists():
        raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository}/{kind}/main/{path}"
