"""The site is built without a link or a reference that leads nowhere, and holds all of the
reference."""

import json
import logging
import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.site.reference import GENERATORS
from hooks import HOOKS
from orchestrator.cli import app
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of the build fails."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        warnings = _Warnings()
        logging.getLogger("mkdocs").addHandler(warnings)
        build(config)
    assert warnings.messages == []
    return folder


class _Warnings(logging.Handler):
    """Collects what strict builds refuse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class _Page(HTMLParser):
    """The anchors and the visible paragraphs of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self.anchors.add(named.get("id") or "")
        self.classes.update((named.get("class") or "").split())


def read_page(site: Path, name: str) -> _Page:
    return _Page((site / name / "index.html").read_text())


def test_reference_has_every_key_hook_and_command(site: Path) -> None:
    assert (
        set(Experiment.model_fields) - {"sweep"} <= read_page(site, "reference/experiment").anchors
    )
    sweep_keys = {f"sweep.{name}" for name in SweepSettings.model_fields}
    assert sweep_keys <= read_page(site, "reference/sweep").anchors
    assert set(HOOKS) <= read_page(site, "reference/hooks").anchors
    verbs = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert verbs <= read_page(site, "reference/commands").anchors


@pytest.mark.parametrize("module", ["orchestrator", "orchestrator.testing", "hooks"])
def test_reference_has_every_public_name(site: Path, module: str) -> None:
    pages = (site / "reference").glob("*/index.html")
    anchors = set().union(
        *(read_page(site, f"reference/{page.parent.name}").anchors for page in pages)
    )
    names = {f"{module}.{name}" for name in list_public_names(module)}
    assert names <= anchors


def list_public_names(module: str) -> set[str]:
    """Return what a module offers, without the hooks, which have a page of their own."""
    offered = import_module(module)
    names = getattr(offered, "__all__", [name for name in vars(offered) if name[0] != "_"])
    hooks = {cls.__name__ for cls in HOOKS.values()}
    modules = {name for name in names if isinstance(getattr(offered, name), ModuleType)}
    return set(names) - hooks - modules - {"HOOKS", "EVENTS"}


def test_reference_has_members(site: Path) -> None:
    assert "orchestrator.Task.loss" in read_page(site, "reference/task").anchors
    assert "hooks.Hook.on_step" in read_page(site, "reference/hook").anchors
    assert "hooks.State.record" in read_page(site, "reference/state").anchors
    assert "orchestrator.Run.stats" in read_page(site, "reference/run").anchors
    assert "orchestrator.Sweep.trials" in read_page(site, "reference/sweep_result").anchors


def test_search_ranks_pages_that_name_everything_below_guides(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    boosts = {
        (entry["location"].partition("/")[0], entry["boost"])
        for entry in index["docs"]
        if "boost" in entry
    }
    assert boosts == {("reference", 0.5), ("migrating", 0.2)}


def test_every_generated_part_is_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"<!-- generated: (\w+) -->", pages)) == set(GENERATORS)


def test_lists_and_admonitions_of_github_are_rendered(site: Path) -> None:
    """GitHub begins a list without a blank line before it, where Markdown needs one."""
    pages = sorted(site.rglob("index.html"))
    texts = {page: page.read_text() for page in pages}
    assert [str(page) for page, text in texts.items() if "[!" in _without_code(text)] == []
    flattened = re.compile(r"<p>(?:(?!</p>).)*?\n(?:\*|-|\d+\.) ", re.DOTALL)
    assert [str(page) for page, text in texts.items() if flattened.search(text)] == []


def _without_code(text: str) -> str:
    return re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
