"""The moment at which a rank's own backward pass ends, before it waits for other ranks."""

from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hooks.private_torch import call_after_backward
from orchestrator.loop.spans.clock import SpanClock


class BackwardTimer:
    """Timer of the end of a rank's own backward pass. Used in workers.

    `DistributedDataParallel` exchanges gradients during the pass, and waits for the missing ones in
    a callback that autograd calls at its end. Autograd calls such callbacks in the order in which
    they were queued, and this one is queued before the last gradient exists. So the time between
    its timestamp and the end of the pass is the wait for other ranks, plus the part of the transfer
    that does not overlap with the pass. On CUDA the timestamp is an event on the caller's stream,
    which autograd makes wait for the kernels of the pass.
    """

    def __init__(self, model: DistributedDataParallel, clock: SpanClock) -> None:
        self._clock = clock
        self._pass_end: Any = None
        self._is_queued = False
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not (model.find_unused_parameters or model.static_graph):
            # Each parameter gets a gradient in each pass, so one is enough.
            trained = trained[:1]
        for parameter in trained:
            # The hook runs before DDP gets the gradient.
            parameter.register_hook(self._queue_callback)

    def _queue_callback(self, gradient: Tensor) -> None:
        if self._clock.recording and not self._is_queued:
            self._is_queued = True
            call_after_backward(self._mark_end)

    def _mark_end(self) -> None:
        self._pass_end = self._clock.mark()

    def take(self, default: Any) -> Any:
        """Return the timestamp of the pass that has just ended, or `default` if there is none."""
        pass_end = self._pass_end
        self._pass_end = None
        self._is_queued = False
        return default if pass_end is None else pass_end
