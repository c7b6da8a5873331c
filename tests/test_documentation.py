"""What the pages say is run: their code and experiment files, and their links."""

import re
from pathlib import Path

import pytest
import yaml

from orchestrator import load_experiment, run
from tests.docs.blocks import read_blocks, write_files

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to call from."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_task_and_hook_train(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    done = run(load_experiment("study/wine.yaml"), folder / "runs", local=True)
    stats, metrics = done.stats, done.metrics
    assert stats.query("phase == 'train'")["confidence"].between(1 / 3, 1).all()
    assert metrics["val/accuracy"].iloc[-1] > 0.9
    assert len(metrics) == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_parts_of_every_page_are_valid(folder: Path, page: Path) -> None:
    """Whatever a page shows of an experiment without a file's name, laid over one of the digits."""
    parts = [
        yaml.safe_load(block.text)
        for block in read_blocks(page)
        if block.language == "yaml" and not block.text.startswith("#")
    ]
    for written in parts:
        part = {
            key: value
            for key, value in written.items()
            if key in ("scheduler", "workers", "sync_batchnorm", "accumulate")
        }
        part |= (
            {"optimizer": written["optimizer"]}
            if written.get("optimizer", {}).get("type", "task") != "task"
            else {}
        )
        hooks = {
            name: hook
            for name, hook in (written.get("hooks") or {}).items()
            if hook is None or "type" not in hook
        }
        (folder / "part.yaml").write_text(
            yaml.safe_dump(
                {
                    "name": "part",
                    "task": "experiments.digits:Digits",
                    "epochs": 100,
                    **part,
                    "hooks": hooks,
                }
            )
        )
        load_experiment(folder / "part.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)) if "://" not in link
    ]
    missing = [link for link in links if not leads_somewhere(page, *link.partition("#")[::2])]
    assert not missing


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def leads_somewhere(page: Path, target: str, heading: str) -> bool:
    target_page = page.parent / target if target else page
    if not target_page.exists():
        return False
    # The build of the site knows the anchors of what it generates.
    is_generated = "reference" in target_page.parts
    return not heading or is_generated or heading in anchors(target_page)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
