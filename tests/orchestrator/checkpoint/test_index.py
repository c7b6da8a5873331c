"""The index of a run's checkpoints: what is changed together is written once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.checkpoint.index import Index
from orchestrator.storage import Storage


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_changed_together_is_written_once(tmp_path: Path, fails: bool) -> None:
    """Also where what changes it fails; what is given up in between and wanted again in the end stays."""
    storage = Storage(tmp_path)
    for name in ("one", "two", "three"):
        storage.write(f"{name}/model.pt", b"")
    index = Index(storage, is_master=True)
    with index.edit() as changed:
        changed["owners"] = {"run": ["one"], "checkpoint": ["one", "two"]}
        changed["labels"] = {"best": "one", "other": "two"}
    stored = (tmp_path / "index.json").read_bytes()
    try:
        with index.edit() as outer:
            outer["owners"] = {"run": [], "checkpoint": []}
            with index.edit() as inner:
                inner["owners"] = {"run": ["three"], "checkpoint": ["two", "three"]}
            assert (tmp_path / "index.json").read_bytes() == stored
            assert storage.names() == ["index.json", "one", "three", "two"]
            assert index.read()["owners"] == {"run": ["three"], "checkpoint": ["two", "three"]}
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert storage.names() == ["index.json", "three", "two"]
    assert json.loads((tmp_path / "index.json").read_text())["labels"] == {"other": "two"}
    assert (
        index.read()
        == Index(storage, is_master=False).read()
        == {"owners": {"run": ["three"], "checkpoint": ["two", "three"]}, "labels": {"other": "two"}}
    )
