import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.disk.initial_weights import find_weights, read_weights
from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.initial_weights import Init


def init_from(source: object, **more: Any) -> Init:
    return Init.model_validate({"from": str(source), **more})


@pytest.mark.parametrize("name", ["weights.pt", "weights@best", "weights@last", "weights@first.pt"])
def test_file_is_found_by_its_whole_name(tmp_path: Path, name: str) -> None:
    """Also if the name ends like a label."""
    torch.save({"layer": torch.ones(3)}, tmp_path / name)
    for source, folders in ((tmp_path / name, []), (name, [tmp_path / "other", tmp_path])):
        origin = find_weights(init_from(source), folders)
        assert origin.path == str(tmp_path / name)
        assert read_weights(origin)["layer"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("scheme", ["file://", "file:", "FILE:"])
def test_file_is_found_by_its_url(tmp_path: Path, scheme: str) -> None:
    torch.save({"layer": torch.ones(3)}, tmp_path / "weights.pt")
    origin = find_weights(init_from(f"{scheme}{tmp_path}/weights.pt"), [tmp_path / "other"])
    assert read_weights(origin)["layer"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("folder/.metadata", r"folder is a folder of torch.distributed.checkpoint; convert it"),
        ("run/checkpoints/folder/manifest.json", r"folder is a checkpoint; write .*/run@folder"),
        ("folder/other", r"no such run or file: .*folder; expected a file, a run's folder"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, file: str, message: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match=f"init.from: .*{message}"):
        find_weights(init_from(path.parent), [])


@pytest.mark.parametrize("content", [b"", b"hello\n", b"PK\x03\x04", pickle.dumps(print, 2)])
def test_file_of_another_format_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"init.from: .*weights.pt cannot be read; expected tensors [^\n]+\)\Z"
    ):
        find_weights(init_from(tmp_path / "weights.pt"), [])
