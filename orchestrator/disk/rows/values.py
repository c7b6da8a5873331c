"""Values of a row: numbers, text, and tensors of one element."""

from typing import Any

import numpy as np

PLAIN = {int, float, str, bool, type(None)}
"""Types of values that need not be read."""


def read_on_cpu(value: Any) -> Any:
    """Return the number in a tensor on the CPU, and any other value unchanged."""
    is_on_cpu = getattr(value, "is_cpu", False) and not is_on_gpu(value)
    return read_number(value) if is_on_cpu and value.numel() == 1 else value


def read_number(value: Any) -> Any:
    """Return the number in a tensor of one element on the CPU, as an integer or a float. A bool
    becomes a float. A complex number stays one, which no column holds."""
    number = value.item()
    if isinstance(number, complex):
        return number
    if isinstance(number, bool) or not isinstance(number, int):
        return float(number)
    # The type stays known, so that a column has one type even if only some of its numbers are
    # large.
    return np.uint64(number) if str(value.dtype) == "torch.uint64" else number


def is_on_gpu(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True


def is_measured_time(value: Any) -> bool:
    """Return whether a value is a time that the device measures, and that can be waited for."""
    return hasattr(value, "resolve") and hasattr(value, "ready")
