"""The order in which DDP exchanges gradients, which a resumed run restores. Used in workers."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from hooks.private_torch import call_after_backward


class GradientOrder:
    """Order in which gradients arrived in the first backward pass in which ranks exchanged them.

    After that pass, DDP sorts gradients by this order into its buckets. A sum of more than two
    numbers depends on their order, and a collective adds each part of a bucket in another order of
    the ranks. So without the same buckets, a resumed run has other last bits on three or more
    ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters = _find_sorted(model)
        self._handles: list[RemovableHandle] = []
        self._indices: list[int] = []
        for index, parameter in enumerate(self._parameters):
            record = partial(self._record, index)
            self._handles.append(parameter.register_post_accumulate_grad_hook(record))

    def _record(self, index: int, parameter: Tensor) -> None:
        if not self._model.require_backward_grad_sync:
            return
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:  # which `restore` does not make
            return
        if not self._indices:
            call_after_backward(self._stop_recording)
        self._indices.append(index)

    def _stop_recording(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def save(self) -> list[int]:
        """Return the indices of the trained parameters in the order of their gradients."""
        return self._indices

    def restore(self, indices: Sequence[int]) -> None:
        """Exchange gradients in a saved order, which DDP then keeps; collective."""
        if not indices or sorted(indices) != [*range(len(self._parameters))]:
            return
        # Autograd runs first what was computed last. A sum of complex numbers is no loss.
        sums = [self._parameters[index].abs().sum() for index in reversed(indices)]
        self._model(run=lambda _: sum(sums)).backward()
        self._model.zero_grad()


def _find_sorted(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters whose gradients DDP sorts by their arrival.

    With `find_unused_parameters` it sorts none. With `static_graph` its first backward pass must be
    one of training.
    """
    if not isinstance(model, DistributedDataParallel):
        return []
    if model.find_unused_parameters or model.static_graph:
        return []
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
