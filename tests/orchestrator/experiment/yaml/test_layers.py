"""A file over its bases."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.experiment.yaml.layers import read_layers


@pytest.mark.parametrize(
    ("hook", "merged"),
    [
        ("{every: 2}", {"decay": 0.5, "every": 2}),
        # Its name is the type of a hook that has none.
        ("{type: ema, every: 2}", {"decay": 0.5, "type": "ema", "every": 2}),
        ("{type: swa, every: 2}", {"type": "swa", "every": 2}),
    ],
)
def test_mapping_with_another_type_replaces_that_of_the_base(
    hook: str, merged: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("hooks: {ema: {decay: 0.5}}\n")
    (tmp_path / "file.yaml").write_text(f"base: base.yaml\nhooks: {{ema: {hook}}}\n")
    document, _ = read_layers(tmp_path / "file.yaml")
    assert document.data == {"hooks": {"ema": merged}}
