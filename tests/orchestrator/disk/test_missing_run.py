import re
from pathlib import Path

import pytest

from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError


def test_a_run_that_does_not_exist_has_a_nearest_name(tmp_path: Path) -> None:
    create_run(tmp_path, "wine", "name: wine\n")
    (tmp_path / "wien.yaml").write_text("name: wien\n")
    (tmp_path / "wins").mkdir()
    (tmp_path / "wins/mine.txt").write_text("mine")
    for name, reason in {
        "wien": f"it does not exist (did you mean {tmp_path}/wine?)",
        "other": "it does not exist. `hookyard ls` lists the runs",
        "wins": "it has no run.json. `hookyard ls` lists the runs",
    }.items():
        with pytest.raises(
            UsageError, match=re.escape(f"{tmp_path}/{name} is not a run: {reason}")
        ):
            RunFolder.open(tmp_path / name)
    started = f"is not a run but an experiment file. To start it: hookyard run {tmp_path}/wien.yaml"
    with pytest.raises(UsageError, match=re.escape(started)):
        RunFolder.open(tmp_path / "wien.yaml")
