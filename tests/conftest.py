"""What every test shares: one thread of work, as in a worker, and Ray's environment before anything
imports ray."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

# What is imported stays, and going through it again and again meanwhile is half of what it takes to
# collect the tests.
gc.disable()
os.environ["OPENBLAS_NUM_THREADS"] = (
    "1"  # NumPy reads it once; more threads than cores wait for each other
)

import pytest  # noqa: E402
import torch  # noqa: E402
import typer.testing  # noqa: E402

from orchestrator.disk import provenance  # noqa: E402
from orchestrator.engines.ray_environment import set_environment  # noqa: E402
from orchestrator.storage.omissions import warn_once  # noqa: E402
from tests.docs.runner import PageRunner  # noqa: E402

torch.set_num_threads(1)
# The files of tests need not survive a power failure, and each wait for a disk takes milliseconds.
os.fsync = lambda file: None
# A call that Ray answers by starting itself is a mistake here: those processes would stay until all
# tests are over.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
set_environment(None)
# Typer builds every subcommand anew for each call, which takes longer than most calls.
vars(typer.testing).update(_get_command=cache(typer.main.get_command))


def _remember_this_repository(
    ask_git: Callable[..., bytes | None],
) -> Callable[..., bytes | None]:
    """Return a function that asks git once about the repository of these tests.

    Most runs of a test are recorded with its state, which takes about as long as they train.
    """
    project = Path(__file__).parents[1]
    remembered = cache(ask_git)

    def ask(folder: Path, *arguments: str) -> bytes | None:
        is_project = folder.resolve() == project
        return remembered(project, *arguments) if is_project else ask_git(folder, *arguments)

    return ask


provenance._ask_git = _remember_this_repository(provenance._ask_git)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-examples",
        action="store_true",
        help="replace the outputs that pages of the docs show by what their examples print",
    )


def pytest_collection_finish() -> None:
    """Every test's module is imported: from here on the garbage collector runs, but passes over
    what is there."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def fresh_warnings() -> None:
    """Let each test see warnings that another test has seen."""
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def frozen_imports() -> Iterator[None]:
    """Freeze what is imported again after a run whose hook has unfrozen everything."""
    unfreeze, calls = gc.unfreeze, []
    gc.unfreeze = lambda: (calls.append("unfreeze"), unfreeze())
    yield
    gc.unfreeze = unfreeze
    if calls:
        gc.freeze()


@pytest.fixture
def page_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> PageRunner:
    """A runner of pages in an empty folder, to call and to import from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return PageRunner(tmp_path, update=pytestconfig.getoption("--update-examples"))


@pytest.fixture(autouse=True)
def import_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Restore the import path after each test, and forget the modules that it imported from a
    temporary folder."""
    path = [*sys.path]
    modules = {*sys.modules}
    temporary = str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        places = getattr(sys.modules[name], "__path__", None) or [
            getattr(sys.modules[name], "__file__", None)
        ]
        if any(str(place).startswith(temporary) for place in places):
            del sys.modules[name]
