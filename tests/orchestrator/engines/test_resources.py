"""The resources that a run needs, and those of this machine."""

from pathlib import Path

import pytest

from orchestrator.engines.resources import Resources, find_local_resources
from orchestrator.experiment.sections.workers import Workers


@pytest.mark.parametrize(
    ("workers", "asked"),
    [
        (Workers(count=3, cpus=0.5), Resources({"CPU": 1.5})),
        (Workers(count=2, gpu=True), Resources({"CPU": 2, "GPU": 2})),
        (Workers(count=[2, 8], cpus=4, gpu=True), Resources({"CPU": 8, "GPU": 2})),
        (Workers(gpu=0.25), Resources({"CPU": 1, "GPU": 0.25})),
        (
            Workers(count=2, memory="1.5 GiB", resources={"spot": 2}),
            Resources({"CPU": 2, "memory": 3 * 2**30, "spot": 4}),
        ),
        (
            Workers(count=2, gpu=True, accelerator="H100"),
            Resources({"CPU": 2, "GPU": 2, "accelerator_type:H100": 0.002}),
        ),
    ],
)
def test_run_requires_the_resources_of_its_fewest_ranks(workers: Workers, asked: Resources) -> None:
    assert Resources.required_by(workers) == asked


def test_unreadable_file_of_a_driver_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("0", "Model: \t NVIDIA H100 80GB HBM3"), ("1", None)):
        (tmp_path / name).mkdir()
        if text:
            (tmp_path / name / "information").write_text(text)
        else:
            (tmp_path / name / "information").mkdir()  # reading it is an OSError
    monkeypatch.setattr("orchestrator.engines.resources._NVIDIA_GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    resources = find_local_resources()
    assert {name: resources.amounts[name] for name in ("GPU", "accelerator_type:H100")} == {
        "GPU": 2,
        "accelerator_type:H100": 1,
    }
