"""The origin of an error: user code, a library, a GPU or a lost peer. Does not import ray."""

import errno
import os
import traceback
from pathlib import Path

import hooks
from hooks.errors import HookError, get_cause_or_context, walk_errors
from orchestrator.errors import HookyardError
from orchestrator.user_code.failures import raised_in_python
from orchestrator.user_code.installed import is_installed

USER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    HookyardError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""Errors that user code would raise again."""

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that a retry would fill again."""

_OWN_PREFIXES = (
    *(f"{folder}{os.sep}" for folder in (*hooks.__path__, Path(__file__).parents[1])),
    "<",
)
"""Prefixes of paths of this project, and of code without a file."""

_TASK = str(Path(__file__).parents[1] / "task.py")
"""File with the methods that tasks inherit."""

_DEVICE_ASSERT = "device-side assert"
"""Text of a GPU error that user code caused, and would cause again."""


def is_user_error(error: BaseException) -> bool:
    """Return whether a failure would repeat, because user code caused it, rather than a lost peer,
    a device or a disk.

    True for the classes in USER_ERRORS, and for other errors whose traceback contains user code. A
    RuntimeError or MemoryError counts only if user code raised it directly: PyTorch raises both for
    device failures. A full disk counts as well, whoever has written to it.
    """
    if can_be_secondary(error):
        return False
    if is_gpu_failure(error):
        return _DEVICE_ASSERT in str(find_root_cause(error))
    cause = error.__cause__ if isinstance(error, HookError) else error
    if isinstance(cause, USER_ERRORS):
        return True
    if isinstance(cause, OSError) and cause.errno in _FULL_DISK:
        return True
    root = find_root_cause(error)
    if not isinstance(cause, RuntimeError | MemoryError):
        return _passed_through_user_code(root)
    frames = _frames(root)
    is_own_line = bool(frames) and is_user_file(frames[-1].filename)
    return is_own_line and raised_in_python(root.__traceback__)


def can_be_secondary(error: BaseException) -> bool:
    """Return whether a rank may have failed only because it lost a peer. Call it before pickling
    drops the traceback.

    True for torch.distributed's errors, and for a RuntimeError raised in C++, such as gloo's;
    others are its own.
    """
    import torch.distributed as dist

    first = find_root_cause(error)
    return isinstance(first, dist.DistError) or (
        type(first) is RuntimeError and not raised_in_python(first.__traceback__)
    )


def is_gpu_failure(error: BaseException) -> bool:
    """Return whether the GPU raised an error, after which the process cannot use it any more."""
    import torch

    return isinstance(find_root_cause(error), torch.AcceleratorError)


def format_location(error: BaseException) -> str:
    """Return the innermost line of user code as ` (file:line, in function)`, or an empty string."""
    frames = _frames(find_root_cause(error))
    own = [frame for frame in frames if is_user_file(frame.filename)]
    if own:
        return f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})"
    # If all modules are torch's, no frame is user code.
    inherited = [frame.name for frame in frames if frame.filename == _TASK]
    return f" (in {inherited[-1]}() of the task)" if inherited else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def is_user_file(file: str) -> bool:
    """Return whether a file belongs to user code."""
    return not file.startswith(_OWN_PREFIXES) and not is_installed(file)


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an error, then its cause or context, and so on."""
    return list(walk_errors(error, get_cause_or_context))


def find_root_cause(error: BaseException) -> BaseException:
    """Return the last of an error's causes and contexts; the error itself if it has none."""
    return _list_causes(error)[-1]


def find_root_cause_in_user_code(error: BaseException) -> BaseException:
    """Return the innermost error of a chain that passed through user code, or the root cause if
    none did."""
    chain = _list_causes(error)
    in_user_code = [link for link in chain if _passed_through_user_code(link)]
    return (in_user_code or chain)[-1]


def _passed_through_user_code(error: BaseException) -> bool:
    return any(is_user_file(frame.filename) for frame in _frames(error))


def count_frames_below_user_code(error: BaseException) -> int:
    """Return the number of frames between user code and the line that raised; 0 if no frame is user
    code."""
    frames = enumerate(reversed(_frames(error)))
    return next((depth for depth, frame in frames if is_user_file(frame.filename)), 0)
