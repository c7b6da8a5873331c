"""The folder in which the code of a page runs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to call and to import from, whose modules are forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)

    yield tmp_path

    for name in set(sys.modules) - known:
        if name.partition(".")[0] in ("study", "probe"):
            del sys.modules[name]
