"""How the driver of a sweep ends the trials that Tune gives up."""

from pathlib import Path

import pytest
from ray.tune.experiment import Trial

from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.sweeps.tune.launch import _make_tune_config, _TrialEvents
from orchestrator.sweeps.tune.trial_data import make_tune_config
from tests.orchestrator.sweeps.test_running_sweep import running


@pytest.mark.parametrize(
    ("lr", "error"),
    [
        (0.1, "the process died without an error message"),
        (-1.0, "SGD raised: Invalid learning rate: -1.0"),
    ],
)
def test_trial_that_never_began_is_recorded_as_failed(
    tmp_path: Path, lr: float, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment.yaml").write_text("name: sweep\n")
    values = {"optimizer.lr": lr}
    _TrialEvents(running(tmp_path)).on_trial_error(
        0, [], Trial("nothing", stub=True, config=make_tune_config(4, values))
    )
    metadata = trial_folder(str(tmp_path), 4).read_metadata()
    assert (metadata.status, metadata.values) == ("failed", values)
    assert error in metadata.error
    assert "trial-0004 [1/3]" in capsys.readouterr().err


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
