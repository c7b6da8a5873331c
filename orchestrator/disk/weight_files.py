"""Files of weights that another program has saved: state dicts of torch, and safetensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from orchestrator.disk.torch_files import load_torch_file
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.storage import Storage

_STATE_DICTS = {
    "model": ("model", "state_dict", "model_state_dict"),
    "ema": ("ema", "model_ema", "ema_state_dict", "state_dict_ema"),
}
"""Names of state dicts in files, by their name in `init.weights`."""


def read_weight_file(path: str, weights: str | None) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU: those of the state dict that `weights`
    names. Raises CheckpointError, or ConfigError if there is no such state dict."""
    storage = Storage(path)
    if path.endswith(".safetensors"):
        content: Any = _read_safetensors(storage)
    else:
        content = _read_torch_file(storage)
    return _choose_state_dict(content, weights, path)


def _read_torch_file(storage: Storage) -> Any:
    with storage.parent.open_copy(storage.name) as file:
        return load_torch_file(file, str(storage))


def _read_safetensors(storage: Storage) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ImportError:
        raise CheckpointError(
            f"{storage} needs the package safetensors: pip install 'hookyard[safetensors]'"
        ) from None
    try:
        tensors: dict[str, Tensor] = load(storage.parent.read(storage.name))
    except SafetensorError as error:
        raise CheckpointError(f"{storage} cannot be read: {error}") from None
    return tensors


def _choose_state_dict(content: Any, weights: str | None, path: str) -> dict[str, Tensor]:
    """Return the state dict of a file: the entry that `weights` names, or the whole content."""
    name = weights or "model"
    if isinstance(content, Mapping):
        for key in (name, *_STATE_DICTS.get(name, ())):
            if isinstance(content.get(key), Mapping):
                return select_tensors(content[key])
        if name == "model" and select_tensors(content):
            return select_tensors(content)
    entries = type(content).__name__
    if isinstance(content, Mapping):
        entries = ", ".join(map(str, list(content)[:10]))
    raise ConfigError.at(
        "init.weights", f"got {name}, but {path} has no such state dict; it holds {entries}"
    )


def select_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the entries of a state dict that are tensors."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
