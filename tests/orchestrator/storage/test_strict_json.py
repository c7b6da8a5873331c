import math
import os
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.storage.strict_json import format_json, parse_json


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(2**62 + 1), 2**62 + 1),
        (np.bool_(True), True),
        (torch.tensor(0.25), 0.25),
        (np.float32("nan"), math.nan),
        (torch.tensor(-math.inf), -math.inf),
        (np.datetime64("2026-01-01"), "2026-01-01"),
        (torch.ones(2), "tensor([1., 1.])"),
    ],
)
def test_numbers_of_numpy_and_torch_stay_numbers(value: Any, plain: Any) -> None:
    text = format_json({"metric": value, "list": [value]})
    assert "NaN" not in text.replace('"NaN"', "")
    read = parse_json(text.encode())
    for number in (read["metric"], *read["list"]):
        assert type(number) is type(plain)
        assert repr(number) == repr(plain)  # NaN differs from itself


def test_text_that_is_no_unicode_is_escaped() -> None:
    name = os.fsdecode(b"plot-\xff.png")
    text = format_json({name: [name, "\U0001f600", "NaN"]})
    assert parse_json(text.encode()) == {
        "plot-\\udcff.png": ["plot-\\udcff.png", "\U0001f600", "NaN"]
    }
