"""Files of `torch.save`, which are loaded without running code that they may hold."""

from collections.abc import Callable
from typing import IO, Any

import torch

from hooks.errors import describe_error
from orchestrator.errors import CheckpointError


def load_torch_file(
    file: IO[bytes], path: str, decode: Callable[[Any], Any] = lambda content: content
) -> Any:
    """Load a file of tensors and plain data onto the CPU.

    Args:
        file: The open file.
        path: The file's path, for the message.
        decode: Converts the content.

    Raises:
        CheckpointError: The file has another format.
        OSError: The file cannot be read.
    """
    try:
        return decode(torch.load(file, map_location="cpu", weights_only=True))
    except OSError:
        raise
    except Exception as error:  # a file of a different format may cause any error
        raise CheckpointError(
            f"{path} cannot be loaded; expected tensors and plain data, saved by torch.save"
            f" ({_describe(error)})"
        ) from error


def _describe(error: Exception) -> str:
    """Return the reason why torch cannot load a file, in one line and without torch's advice."""
    text = str(error).partition("WeightsUnpickler error: ")[2]
    reason = text.partition(". Please")[0].partition("Check the documentation")[0]
    return " ".join(reason.split()) or describe_error(error).partition("\n")[0]
