"""The resources that a run needs."""

import pytest

from orchestrator.engines.resources import Resources
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


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ({}, "0 CPUs"),
        ({"CPU": 2, "GPU": 0}, "2 CPUs"),
        ({"CPU": 2, "GPU": 1}, "2 CPUs and 1 GPU"),
        ({"CPU": 2, "GPU": 8, "memory": 2**33}, "2 CPUs, 8 GPUs and 8 GiB of memory"),
    ],
)
def test_resources_as_text(amounts: dict[str, float], text: str) -> None:
    assert str(Resources(amounts)) == text


@pytest.mark.parametrize(
    ("workers", "present", "shortages"),
    [
        (Workers(count=25, cpus=2.2), {"CPU": 55}, []),
        (Workers(count=2, cpus=2), {"CPU": 3}, [("4 CPUs", "3 CPUs")]),
        (Workers(gpu=True), {"CPU": 3}, [("1 GPU", "none")]),
        (
            Workers(gpu=True, accelerator="H100"),
            {"CPU": 3, "GPU": 1},
            [("GPUs of the kind H100", "none")],
        ),
    ],
)
def test_shortages_are_named_and_not_made_by_rounding(
    workers: Workers, present: dict[str, float], shortages: list[tuple[str, str]]
) -> None:
    """25 times 2.2 is more than 55 in floats."""
    assert Resources.required_by(workers).find_shortages(Resources(present)) == shortages
