"""Names of devices in settings of hooks: `cpu`, `cuda` or `cuda:1`."""

import re
from typing import Annotated, Any

import torch

from hooks.errors import SettingError

_PATTERN = r"^(cpu|cuda(:\d+)?)$"


class _DeviceName:
    """Check of a device's name, for pydantic; the device itself may exist only in a worker."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(_check_name)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": _PATTERN}


Device = Annotated[str, _DeviceName()]
"""The name of a device; check in a worker with `require_device` that it exists."""


def _check_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_PATTERN, value):
        raise ValueError(f"must be cpu, cuda or a GPU such as cuda:1, got {value!r:.80}")
    return value


def require_device(name: str, field: str) -> None:
    """Raise SettingError, which names the hook's field, if this worker does not have a device."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    available = ["cpu", *gpus]
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in available:
        raise SettingError(
            f"{field}: this worker has no device '{name}'; it has {', '.join(available)}"
        )
