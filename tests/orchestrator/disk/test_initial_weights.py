import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator import Task, TrainingSession, run
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.contents import load_buffers, load_part
from orchestrator.disk.checkpoints.reader import CheckpointReader
from orchestrator.disk.initial_weights import find_weights, read_weights
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.runs.result import Run
from tests.tasks import described


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
        ConfigError, match=r"init.from: .*weights.pt cannot be loaded; expected tensors [^\n]+\)\Z"
    ):
        find_weights(init_from(tmp_path / "weights.pt"), [])


@dataclass
class TwoParts(Task):
    """A custom loop whose model is not called `model`."""

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        averages = {"model": {"weight": torch.full((1, 2), 4.0)}, "count": 2}
        session.restore(net=net, opt=optimizer, averages=averages)
        with torch.no_grad():
            net.weight.fill_(3.0)
            net.bias.fill_(5.0)
        session.record(loss=1.0)
        yield {"val/loss": 1.0}


@pytest.fixture
def custom_run(tmp_path: Path) -> Run:
    custom = described(
        task=f"{__name__}:TwoParts",
        epochs=1,
        hooks={"checkpoint": {}},
        batch_size=None,
        optimizer=None,
    )
    return run(custom, tmp_path, "custom", local=True)


@pytest.mark.parametrize(
    ("part", "weights", "stored"),
    [
        ("net", "net", {"weight": [[3, 3]], "bias": [5]}),
        ("averages", "averages/model", {"weight": [[4, 4]]}),
    ],
)
def test_part_of_a_custom_loop_is_a_state_dict_or_holds_one(
    custom_run: Run, part: str, weights: str, stored: dict[str, Any]
) -> None:
    origin = find_weights(init_from(f"{custom_run.path}@last", weights=part), [])
    assert origin.weights == weights
    assert {name: value.tolist() for name, value in read_weights(origin).items()} == stored


@pytest.mark.parametrize(
    ("more", "given"),
    [
        ({}, "is model by default"),
        ({"weights": "model"}, "got model"),
        ({"weights": "ema"}, "got ema"),
    ],
)
def test_parts_of_a_custom_loop_are_named_if_another_is_wanted(
    custom_run: Run, more: dict[str, Any], given: str
) -> None:
    folder = re.escape(f"{custom_run.path}/checkpoints/epoch-0001")
    message = f"init.weights: {given}, which {folder} does not hold; it holds averages, net, opt"
    with pytest.raises(ConfigError, match=message):
        find_weights(init_from(f"{custom_run.path}@last", **more), [])


def test_missing_entry_of_a_part_is_an_error_of_the_checkpoint(custom_run: Run) -> None:
    reader = CheckpointReader(find_checkpoint_folder(custom_run.folder))
    with pytest.raises(CheckpointError, match="net in checkpoint 'epoch-0001' has no model"):
        load_part(reader, "epoch-0001", "net/model")
    assert load_buffers(reader, "last") == ({}, [])
