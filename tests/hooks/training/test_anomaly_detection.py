import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from hooks import Hook, HookError, State
from hooks.training.anomaly_detection import AnomalyDetection
from orchestrator.loop.loop import Loop
from tests.tasks import Breaks, Points, experiment

Setting = tuple[bool, bool]


def setting() -> Setting:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


@pytest.fixture(params=[(False, True), (False, False), (True, False)], ids=str)
def found(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """A setting that somebody made before the run."""
    before = setting()
    torch.autograd.set_detect_anomaly(*request.param)
    yield request.param
    torch.autograd.set_detect_anomaly(*before)


class Settings(Hook):
    """Keeps the setting of each iteration."""

    def __init__(self) -> None:
        self.seen: set[Setting] = set()

    def on_loss(self, state: State) -> None:
        self.seen.add(setting())


@dataclass
class RootOfNothing(Points):
    """The loss is finite; the derivative of the root at 0, times 0, is not."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return self.a_place_to_find(output * 0).sum()

    def a_place_to_find(self, zeros: Tensor) -> Tensor:
        return zeros.sqrt() * 0


@pytest.mark.parametrize("check_nan", [True, False])
def test_anomaly_detection_is_on_during_the_run_and_restored_after_it(
    found: Setting, check_nan: bool
) -> None:
    """iMIX's hook leaves its mode behind, for whatever the process does next."""
    settings = Settings()
    list(
        Loop(
            Points(),
            experiment(epochs=1),
            {"anomalies": AnomalyDetection(check_nan), "settings": settings},
        ).run()
    )
    assert settings.seen == {(True, check_nan)}
    assert setting() == found


def test_setting_is_restored_after_a_failure_or_an_abandoned_run(found: Setting) -> None:
    with pytest.raises(HookError, match="broken on purpose"):
        list(
            Loop(
                Points(), experiment(), {"anomalies": AnomalyDetection(), "breaks": Breaks()}
            ).run()
        )
    assert setting() == found
    reports = Loop(Points(), experiment(), {"anomalies": AnomalyDetection()}).run()
    next(reports)
    assert setting() == (True, True)
    reports.close()
    assert setting() == found


def test_names_the_operation_and_where_it_was_called() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(
            RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output"
        ):
            list(Loop(RootOfNothing(), experiment(), {"anomalies": AnomalyDetection()}).run())
    assert any(
        "Error detected in SqrtBackward0" in str(one.message)
        and "a_place_to_find" in str(one.message)
        for one in caught
    )
