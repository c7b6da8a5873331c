from pathlib import Path

import pytest
import torch

from orchestrator.disk.info import read_info, write_info
from orchestrator.disk.new_run import create_run
from orchestrator.storage import Storage


def test_notes_that_json_cannot_express_are_left_out(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert read_info(storage) is None
    write_info(storage, {"weights": torch.zeros(2)})
    assert read_info(storage) is None
    write_info(storage, {"weights": torch.zeros(2), "classes": ["cat", "dog"], "mean": 0.5})
    assert read_info(storage) == {"classes": ["cat", "dog"], "mean": 0.5}


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ('{"format": 1}', "it has no `info`"),
        ('{"info": [1]}', "`info`: input should be an object"),
        ("[]", "input should be an object"),
        ('{"info": {', "it is not valid JSON"),
    ],
)
def test_a_run_ends_though_its_notes_are_damaged(
    tmp_path: Path, text: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = create_run(tmp_path, "digits", "name: digits\n")
    folder.storage.write("info.json", text)
    folder.run_file.end("finished")
    metadata = folder.read_metadata()
    assert (metadata.status, metadata.info) == ("finished", {})
    (warning,) = caplog.messages
    assert f"info.json is damaged: {damage}" in warning
    assert "It is left out of run.json" in warning
