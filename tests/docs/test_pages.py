"""Every page for users is run: its commands print what it shows, and its code works."""

from pathlib import Path

import pytest

from tests.docs.runner import ROOT, PageRunner

FOLDERS = ("start", "guides", "explanations", "places", "migrating")
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "README.md",
    *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).glob("*.md"))),
]
NOT_RUN = {
    "docs/guides/experiment_file.md": "tests/docs/test_experiment_file.py runs it",
    "docs/guides/schedules.md": "tests/docs/test_schedules.py runs it",
    "docs/guides/use_a_model.md": "tests/docs/test_use_a_model.py runs it",
    "docs/migrating/classyvision.md": "tests/test_migrating.py checks it",
    "docs/migrating/imix.md": "tests/test_migrating.py checks it",
    "docs/migrating/mmengine.md": "tests/test_migrating.py checks it",
    "docs/migrating/options.md": "tests/test_migrating.py checks it",
    "docs/migrating/vissl.md": "tests/test_migrating.py checks it",
}
"""Pages that are not run here, and why."""

PACKAGES = {
    "docs/migrating/accelerate.md": "accelerate",
    "docs/migrating/lightning.md": "pytorch_lightning",
    "docs/migrating/optuna.md": "optuna",
    "docs/migrating/transformers.md": "transformers",
    "docs/migrating/wandb_sweeps.md": "wandb",
}
"""Packages that pages use and Hookyard does not need. Without them, a page is not run."""

STARTS_RAY = {
    "README.md",
    "docs/README.md",
    "docs/guides/analyze.md",
    "docs/migrating/ray_tune.md",
    "docs/places/this_machine.md",
    "docs/start/first_run.md",
    "docs/start/first_sweep.md",
}
"""Pages whose commands start Ray: tests/ray/test_pages.py runs them on the cluster of its tests."""


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUN = [page for page in PAGES if name_page(page) not in {*NOT_RUN, *STARTS_RAY}]


def test_pages_not_run_exist() -> None:
    names = {name_page(page) for page in PAGES}
    assert {*NOT_RUN, *PACKAGES, *STARTS_RAY} <= names


@pytest.mark.parametrize("page", RUN, ids=name_page)
def test_page_works_as_printed(page: Path, page_runner: PageRunner) -> None:
    if package := PACKAGES.get(name_page(page)):
        pytest.importorskip(package)
    page_runner.run(page)
