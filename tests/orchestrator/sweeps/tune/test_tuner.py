"""How the driver of a sweep starts Tune."""

from pathlib import Path

import pytest

from orchestrator.sweeps.tune.tuner import _make_tune_config
from tests.orchestrator.sweeps.test_running_sweep import running


@pytest.mark.parametrize(
    ("scheduler", "max_concurrent"),
    [("fifo", 2), ("asha", 2), ("pbt", None), ("hyperband", None)],
)
def test_schedulers_with_waiting_trials_begin_all_of_them(
    tmp_path: Path, scheduler: str, max_concurrent: int | None
) -> None:
    config = _make_tune_config(running(tmp_path, scheduler=scheduler), 2)
    assert (config.search_alg, config.num_samples, config.max_concurrent_trials) == (
        None,
        3,
        max_concurrent,
    )
