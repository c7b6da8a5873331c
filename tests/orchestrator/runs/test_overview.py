"""The overview of a run."""

from pathlib import Path

import pytest

from orchestrator.runs.overview import describe_run
from orchestrator.runs.start import run
from tests.tasks import described

QUIET = {"console": None, "perf_stats": None, "memory_stats": None}
DIVERGES = [{"at": "1 epochs", "set": {"optimizer.lr": 1e30}}]


@pytest.mark.parametrize(("every", "label"), [(1, "best"), (3, None)])
def test_a_checkpoint_is_recommended_only_from_before_a_divergence(
    tmp_path: Path, every: int, label: str | None
) -> None:
    """The rate makes the weights infinite in the second of three epochs."""
    hooks = {**QUIET, "checkpoint": {"every": every}}
    experiment = described(epochs=3, hooks=hooks, changes=DIVERGES)
    overview = describe_run(run(experiment, tmp_path, "diverged", local=True).folder)
    assert overview["diverged"]
    hint = overview["use"]
    if label is None:
        assert hint is None
    else:
        assert hint.python.endswith(f'.load("{label}")')
