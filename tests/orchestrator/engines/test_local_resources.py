"""The resources of this machine, without Ray."""

from pathlib import Path

import pytest
import torch

from orchestrator.engines import local_resources
from orchestrator.engines.local_resources import find_local_resources


@pytest.fixture
def gpus_of_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of NVIDIA's driver, without a GPU."""
    monkeypatch.setattr(local_resources, "_NVIDIA_GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_unreadable_file_of_a_driver_is_no_error(gpus_of_driver: Path) -> None:
    (gpus_of_driver / "0").mkdir()
    (gpus_of_driver / "0" / "information").write_text("Model: \t NVIDIA H100 80GB HBM3")
    (gpus_of_driver / "1" / "information").mkdir(parents=True)  # reading it is an OSError
    amounts = find_local_resources().amounts
    assert {name: amounts[name] for name in ("GPU", "accelerator_type:H100")} == {
        "GPU": 2,
        "accelerator_type:H100": 1,
    }


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("GPU-8f1a,MIG-40c2", 2), ("0,-1,1", 1)],
)
def test_cuda_shows_the_gpus_that_precede_an_invalid_one(
    gpus_of_driver: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert find_local_resources().amounts["GPU"] == count


def test_torch_counts_the_gpus_where_no_nvidia_driver_lists_them(
    gpus_of_driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is for AMD's GPUs, and in WSL2."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert find_local_resources().amounts["GPU"] == 3
