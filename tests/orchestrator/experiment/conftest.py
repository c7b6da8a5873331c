from pathlib import Path

import pytest

from tests.orchestrator.experiment.samples import TEXT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "line.yaml").write_text(TEXT)
    return tmp_path / "line.yaml"
