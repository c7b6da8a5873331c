"""Settings of an experiment for torch itself, which apply while a run trains. Used in workers."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from orchestrator.experiment.sections.experiment import Experiment


def thread_count(experiment: Experiment) -> int:
    """Return the number of torch's threads of a rank. Sums are split by threads, so their last bits
    depend on it."""
    return max(1, int(experiment.workers.cpus))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_settings(experiment: Experiment) -> Iterator[None]:
    """Apply the experiment's settings to torch within the block; restore the previous ones after
    it."""
    with ExitStack() as before:
        if experiment.deterministic:
            # Without it, torch rejects matrix products; cuBLAS reads it at each call.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            before.callback(
                torch.use_deterministic_algorithms,
                torch.are_deterministic_algorithms_enabled(),
                warn_only=warns,
            )
            torch.use_deterministic_algorithms(True)
        if experiment.cudnn_benchmark:
            before.callback(
                setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark
            )
            torch.backends.cudnn.benchmark = True
        if experiment.float32_matmul_precision:
            before.callback(
                torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
            )
            torch.set_float32_matmul_precision(experiment.float32_matmul_precision)
        yield
