"""Values of Python as plain data."""

from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.errors import ConfigError
from orchestrator.experiment.yaml.plain_values import to_plain_data


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan"), torch.tensor(float("nan"))])
def test_nan_is_refused_whatever_its_type(value: Any) -> None:
    with pytest.raises(ConfigError, match="a number cannot be NaN in a file"):
        to_plain_data({"value": value})


@pytest.mark.parametrize("value", [np.datetime64("2026-01-02"), np.complex64(1j)])
def test_scalar_without_a_plain_form_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be saved as YAML"):
        to_plain_data({"value": value})
