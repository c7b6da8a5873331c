"""The end of a rank's own backward pass, after which it waits for the gradients of the others."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hooks.private_torch import at_end_of_backward
from orchestrator.loop.clock.span_clock import Clock


class BackwardTimer:
    """Takes a mark of the clock where a rank is through with its own backward pass. Worker process.

    `DistributedDataParallel` sends gradients while the pass is under way, and waits for those that are not there yet in
    a callback that autograd calls at the pass's end. Autograd calls such callbacks in the order in which they were
    asked for, and this one is asked for before the last gradient is there. So what passes between its mark and the end
    of the pass is waiting for other ranks, and the part of the transfer that the pass did not hide. No gradient is
    touched and nothing is sent. On CUDA autograd makes the stream of the caller wait for the kernels of the pass before
    it calls back, so that an event of that stream stands between them and the waiting.
    """

    def __init__(self, model: DistributedDataParallel, clock: Clock) -> None:
        self._clock = clock
        self._ended: Any = None
        self._is_asked = False
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Any will do where DDP demands a gradient of each in each pass; a tensor's hooks come before DDP is given its
        # gradient.
        for parameter in trained if model.find_unused_parameters or model.static_graph else trained[:1]:
            parameter.register_hook(self._in_backward)

    def _in_backward(self, gradient: Tensor) -> None:
        if self._clock.recording and not self._is_asked:
            self._is_asked = True
            at_end_of_backward(self._at_end)

    def _at_end(self) -> None:
        self._ended = self._clock.mark()

    def take(self, default: Any) -> Any:
        """The mark of the pass that just ended; the default where none was taken."""
        ended, self._ended, self._is_asked = self._ended, None, False
        return default if ended is None else ended
