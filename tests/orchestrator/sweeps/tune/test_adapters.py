"""How the driver of a sweep records the ends of trials that Tune tells it of."""

from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial

from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.sweeps.search.search import make_trial_config
from orchestrator.sweeps.tune.adapters import Stopper, TrialEvents
from orchestrator.sweeps.tune.trial_data import TRIAL, make_tune_config
from tests.orchestrator.sweeps.test_running_sweep import running
from tests.orchestrator.sweeps.tune.fakes import make_result


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
    TrialEvents(running(tmp_path)).on_trial_error(
        0, [], Trial("nothing", stub=True, config=make_tune_config(4, values))
    )
    metadata = trial_folder(str(tmp_path), 4).read_metadata()
    assert (metadata.status, metadata.trial_settings.values) == ("failed", values)
    assert error in metadata.error
    assert "trial-0004 [1/3]" in capsys.readouterr().err


def make_shared_trial(folder: Path) -> Trial:
    """Make Tune's trial of three that share a training run."""
    (folder / "experiment.yaml").write_text("name: sweep\n")
    followers: list[Any] = [{"number": number, "values": {}} for number in (1, 2)]
    return Trial("nothing", stub=True, config={TRIAL: make_trial_config(0, {}, followers)})


def test_a_trial_that_failed_alone_is_recorded_once_and_left_out_of_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_shared_trial(tmp_path)
    events = TrialEvents(running(tmp_path))
    result = make_result({"val/accuracy": 0.5}, failed=[1])
    for _ in range(2):
        events.on_trial_result(0, [], trial, result)
    assert capsys.readouterr().err.count("failed: ") == 1
    assert trial_folder(str(tmp_path), 1).read_metadata().status == "failed"

    events.on_trial_start(0, [], trial)
    begun = [line for line in capsys.readouterr().err.splitlines() if "begins" in line]
    assert begun == ["trial-0000 begins: ", "trial-0002 begins: "]


def test_a_failure_that_no_result_told_of_is_recorded_before_the_others_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trial 0 has ended, trial 1 failed in its own code, and trial 2 with the process that all of
    them lost."""
    trial = make_shared_trial(tmp_path)
    ended = trial_folder(str(tmp_path), 0)
    ended.begin("")
    ended.run_file.end("stopped")
    for number, is_user_error in ((1, True), (2, False)):
        folder = trial_folder(str(tmp_path), number)
        folder.begin("")
        folder.run_file.end("failed", error=f"error {number}", is_user_error=is_user_error)
    sweep = running(tmp_path)
    TrialEvents(sweep).on_trial_recover(0, [], trial)
    assert [number for number in range(3) if sweep.has_failed(number)] == [1]
    lines = capsys.readouterr().err
    assert "trial-0001 [1/3] : failed: error 1" in lines
    assert "trial-0002: error 2; it begins on new processes" in lines
    assert "trial-0000" not in lines, "it does not restart"


@pytest.mark.parametrize("followers", [0, 1])
def test_tune_stops_a_trial_only_if_no_other_shares_its_training(
    tmp_path: Path, followers: int
) -> None:
    """Each report counts, so the third one is that of `max_reports`. A result without one does
    not."""
    others: list[Any] = [{"number": 1, "values": {}}] * followers
    config = {TRIAL: make_trial_config(0, {}, others)}
    sweep = running(tmp_path, stop={"max_reports": 3})
    stopper = Stopper(sweep)
    decisions = []
    for number, count in ((0, 1), (None, 1), (0, 2), (0, 3)):
        result = make_result({"val/accuracy": 0.5}, number, count)
        decisions.append(stopper("id", {**result, "config": config}))
    assert decisions == [False, False, False, not followers]
    assert sweep.reasons_to_stop == {0: "max_reports: 3 reached"}
