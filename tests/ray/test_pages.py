"""The pages whose commands start Ray."""

from typing import Any

import pytest

from tests.docs.runner import ROOT, PageRunner
from tests.docs.test_pages import STARTS_RAY

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("name", sorted(STARTS_RAY))
def test_page_works_as_printed(name: str, ray_cluster: Any, page_runner: PageRunner) -> None:
    page_runner.run(ROOT / name)
