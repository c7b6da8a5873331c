"""The device on which a rank trains."""

import torch

from orchestrator.errors import UsageError
from orchestrator.experiment.sections.workers import Workers


def find_device(workers: Workers) -> torch.device:
    """Return the device of a rank in this process. Raises UsageError if torch cannot use the GPU it
    needs."""
    if not workers.gpu:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    reason = "is built for CPUs only"
    if torch.version.cuda or torch.version.hip:
        reason = "finds no usable GPU"
    raise UsageError(
        f"workers.gpu needs a GPU, but torch {torch.__version__} {reason}; set workers.gpu=false to"
        " train on the CPU"
    )
