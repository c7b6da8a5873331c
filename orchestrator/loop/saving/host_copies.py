"""Copies of tensors in host memory, which later iterations do not change."""

from copy import deepcopy
from functools import partial
from typing import Any, TypeVar
from weakref import finalize

import torch
from torch import Tensor, nn

from orchestrator.disk.checkpoints import placeholders
from orchestrator.errors import CheckpointError

_T = TypeVar("_T")


class HostCopier:
    """Copier of tensors into host memory. Used in workers.

    The memory is reused from one copy to the next; it is pinned if the tensors come from a GPU.
    Source: torch.distributed.checkpoint.async_save.
    """

    def __init__(self, device: torch.device) -> None:
        # Its import takes half a second.
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._device = device
        on_gpu = device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=on_gpu,
        )
        self._new_stager = partial(DefaultStager, options)
        self._stager = self._new_stager()
        # A reference cycle in the stager would keep all copies.
        finalize(self, self._stager.close)

    def copy(self, tree: _T) -> _T:
        """Return a finished copy on the CPU, in which tensors share memory as they do in `tree`.

        Raises CheckpointError if there is not enough memory.
        """
        tensors: dict[Any, Tensor] = {
            id(tensor): tensor for tensor in placeholders.tensors_in(tree)
        }
        # The stager gets only the tensors, because it changes parameters, and containers other than
        # dicts.
        plain_tensors = {
            key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in tensors.items()
        }
        try:
            copies: Any = self._stager.stage(plain_tensors)
        except torch.AcceleratorError:
            raise
        except (RuntimeError, AssertionError) as error:
            raise CheckpointError(
                f"the checkpoint cannot be copied to host memory: {error}; set hooks.checkpoint.background: false"
            ) from error
        if torch.__version__ < "2.13":
            # An older stager closes itself after a copy.
            self._stager = self._new_stager()
        if self._device.type == "cuda":
            # The stager synchronizes only the current device.
            torch.cuda.synchronize(self._device)
        return deepcopy(tree, {key: _like(copies[key], tensor) for key, tensor in tensors.items()})


def _like(copy: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy with the tensor's class and `requires_grad`."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)
