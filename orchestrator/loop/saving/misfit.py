"""The error of a checkpoint that does not fit the experiment. Used in workers."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from orchestrator.errors import UsageError
from orchestrator.loop.model.initial_weights import describe_mismatches
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.user_code.failures import raised_in_python


@contextmanager
def explaining_misfit(
    loaded: LoadedCheckpoint, module: nn.Module, missing_key: str
) -> Iterator[None]:
    """Raise UsageError if something of a checkpoint does not fit that is restored in the block.

    A failure that says nothing of the checkpoint passes, such as a lack of memory on the device: a
    retry may succeed.

    Args:
        loaded: The checkpoint.
        module: The model. If the checkpoint's weights do not fit it, that explains any error.
        missing_key: What a KeyError means, with `{}` for its key.
    """
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        model = module.state_dict()
        reasons = describe_mismatches(loaded.shared["model"], model, model)
        if not reasons and not _is_refusal(error):
            raise
        reason = missing_key.format(error) if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"checkpoint '{loaded.name}' does not fit this experiment: {'; '.join(reasons or [reason])}."
            " Undo the change, or start another run with init.from"
        ) from error


def _is_refusal(error: Exception) -> bool:
    """Return whether code in Python refused the content, rather than that a device failed."""
    if not isinstance(error, RuntimeError):
        return True
    return type(error) is RuntimeError and raised_in_python(error.__traceback__)
