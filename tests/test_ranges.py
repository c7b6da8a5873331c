"""What pyproject allows at the oldest is what `make test-oldest` runs."""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: extra for name, extra in PROJECT["optional-dependencies"].items() if name not in ("dev", "gpu")}
PINS = dict(
    line.lower().split("==") for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if "==" in line
)


@pytest.mark.parametrize("text", sorted({*PROJECT["dependencies"], *chain(*EXTRAS.values())}))
def test_the_oldest_version_is_the_one_tested(text: str) -> None:
    asked = Requirement(text)
    (bound,) = [Version(one.version) for one in asked.specifier if one.operator == ">="]
    assert Version(PINS[asked.name]) == bound
