"""The pages whose commands start Ray."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.runner import ROOT, PageRunner
from tests.docs.test_pages import STARTS_RAY

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("name", sorted(STARTS_RAY))
def test_page_works_as_printed(
    name: str, ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    PageRunner(tmp_path).run(ROOT / name)
