"""An experiment's file, and the import path left as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orchestrator.config.samples import TEXT


@pytest.fixture(autouse=True)
def import_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "line.yaml").write_text(TEXT)
    return tmp_path / "line.yaml"
