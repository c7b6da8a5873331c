"""The rank of this process, and its communication with the other ranks. Runs in workers."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class World:
    """Rank of this process in a run, and collectives for small messages.

    The code that starts the ranks creates and destroys the process group. Messages use gloo, also
    beside NCCL.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = field(default_factory=socket.gethostname)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        # torch's own hints disagree on the type of a new group.
        self._group: Any = self._make_group()
        self.when_aborted: list[Callable[[], None]] = []
        """Functions to call before `abort` ends the device's collectives."""
        self._is_aborted = False

    def _make_group(self) -> Any:
        """Return a group of its own for messages; None if it needs none. Collective."""
        needs_group = self.world_size > 1 and dist.get_backend() != "gloo"
        return dist.new_group(backend="gloo") if needs_group else None

    def abort(self) -> None:
        """Abort the device's collectives, because a rank may have died; callable from any thread.

        NCCL would wait for that rank until a timeout, and so would every synchronization with the
        device. Results on the device may be wrong afterwards. Gloo detects a dead rank itself.
        """
        if self._is_aborted:
            return
        self._is_aborted = True
        for call in self.when_aborted:
            call()
        # Without a group of its own for messages, the only group is a gloo group.
        if self._group is not None and dist.group.WORLD is not None:
            dist.group.WORLD.abort()

    @property
    def place(self) -> str:
        """Text for a message about this rank, ` on rank 3`; empty without other ranks."""
        return f" on rank {self.rank}" if self.world_size > 1 else ""

    @property
    def is_master(self) -> bool:
        return self.rank == 0

    def number_on_nodes(self) -> None:
        """Set `local_rank` by counting the ranks of each node; collective."""
        self.local_rank = self.gather(self.node)[: self.rank].count(self.node)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """Return rank 0's value on every rank; only rank 0 calls `make`."""
        if self.world_size == 1:
            return make()
        values = [make() if self.is_master else None]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier(group=self._group)

    def maximum(self, values: list[float]) -> list[float]:
        """Return the element-wise maximum across ranks."""
        if self.world_size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in tensor]
