"""Devices in settings: their names are checked with the experiment, their presence in a worker."""

import pytest
import torch

from hooks.device import require_device
from hooks.errors import SettingError
from orchestrator.errors import ConfigError
from orchestrator.experiment.make_hooks import make_hooks

REFUSED = ("gpu", "cuda:", "cuda:-1", "meta", "CPU", "", "cpu\n", 0)


@pytest.mark.parametrize("name", REFUSED)
def test_other_names_are_refused_with_the_allowed_ones(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        make_hooks({"ema": {"device": name}}, {})
    (problem,) = caught.value.problems
    assert problem.path == "hooks.ema.device"
    assert problem.message == f"must be cpu, cuda or a GPU such as cuda:1, got {name!r}"


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:7", None])
def test_names_are_accepted_wherever_the_experiment_is_read(name: str | None) -> None:
    make_hooks({"ema": {"device": name}}, {})


def test_device_that_a_worker_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for present in ("cpu", "cuda", "cuda:1"):
        require_device(present, "device")
    with pytest.raises(SettingError) as caught:
        require_device("cuda:2", "device")
    assert str(caught.value) == (
        "device: this worker has no device 'cuda:2'; it has cpu, cuda:0, cuda:1"
    )
