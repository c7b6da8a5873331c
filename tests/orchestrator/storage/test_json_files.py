from pathlib import Path

import pytest

from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.validation import check_mapping


def test_an_edited_file_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = Storage(tmp_path)
    entries = {"step": 12, "inner": {"word": 'é"}\n'}}
    write_json(storage, "run.json", entries)
    assert read_json(storage, "run.json", check_mapping, "") == entries
    storage.write("run.json", storage.read("run.json").replace(b"12", b"13"))
    assert read_json(storage, "run.json", check_mapping, "")["step"] == 13
    assert caplog.text == ""
