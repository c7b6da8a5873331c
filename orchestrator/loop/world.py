"""The world: which rank this process is, and how it agrees with the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class World:
    """This process among the ranks of a run. Worker process.

    The process group is made and destroyed by whoever starts the ranks; messages between ranks go over gloo, beside
    the gradients' own backend.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = field(default_factory=socket.gethostname)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        needs_group = self.world_size > 1 and dist.get_backend() != "gloo"
        self._group = dist.new_group(backend="gloo") if needs_group else None
        self.when_aborted: list[Callable[[], None]] = []
        """What is called before what the device does with other ranks is ended."""
        self._is_aborted = False

    def abort(self) -> None:
        """Ends what the device does together with other ranks, of which one may be gone: NCCL would wait for it until
        its timeout, and whoever waits for the device with it. What the device has computed may be anything then. From
        any thread; gloo hears of it by itself."""
        if self._is_aborted:
            return
        self._is_aborted = True
        for call in self.when_aborted:
            call()
        group = dist.group.WORLD if self._group is not None else None
        if group is not None:
            group.abort()

    @property
    def is_master(self) -> bool:
        """Whether this is global rank 0."""
        return self.rank == 0

    def number_on_nodes(self) -> None:
        """Counts the ranks of each node, for `local_rank`; for whoever was not told it. Collective."""
        self.local_rank = self.gather(self.node)[: self.rank].count(self.node)

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """Rank 0's value on every rank; `make` is called on rank 0 alone."""
        if self.world_size == 1:
            return make()
        values = [make() if self.is_master else None]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.world_size > 1:
            dist.barrier(group=self._group)

    def maximum(self, values: list[float]) -> list[float]:
        """The largest of each value over ranks."""
        if self.world_size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in tensor]
