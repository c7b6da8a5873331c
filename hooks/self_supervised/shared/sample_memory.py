"""The newest embedding of each training sample."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.distributed import collectives
from hooks.state import State


class SampleMemory:
    """The newest embedding of each sample for some views.

    Each rank keeps the samples whose index, modulo the number of ranks, is its rank. An additional
    slot takes the samples of other ranks, because selecting the own ones would synchronize.
    """

    def __init__(self) -> None:
        self._embeddings = torch.zeros(0, 1, 0)
        """By view and slot, (V, n + 1, D)."""
        self._is_known = torch.zeros(1, dtype=torch.bool)
        """Whether a slot has an embedding, (n + 1)."""
        self.world_size = 0
        """Number of ranks among which the samples are divided; 0 before `clear`."""

    def clear(self, size: int, views: int, state: State) -> None:
        """Forget all samples, and divide `size` samples among the ranks of a run."""
        count = len(range(state.rank, size, state.world_size))
        self._is_known = torch.zeros(count + 1, dtype=torch.bool, device=state.device)
        self._embeddings = torch.zeros(views, count + 1, 0, device=state.device)
        self.world_size = state.world_size

    def move(self, device: torch.device) -> None:
        self._embeddings = self._embeddings.to(device)
        self._is_known = self._is_known.to(device)

    def put(self, embeddings: Tensor, indices: Tensor, state: State) -> None:
        """Keep the embeddings (V, B, D) of those samples (B,) that this rank keeps."""
        if not self._embeddings.shape[2]:
            views, slots, _ = self._embeddings.shape
            self._embeddings = embeddings.new_zeros(views, slots, embeddings.shape[2])
        is_own = indices % state.world_size == state.rank
        last = len(self._is_known) - 1
        slots_of_samples = torch.where(is_own, indices // state.world_size, last)
        self._embeddings[:, slots_of_samples] = embeddings
        self._is_known[slots_of_samples] = True

    def list_known(self, size: int, state: State) -> Tensor:
        """Return the indices, among `size` samples, of those that this rank knows."""
        own = torch.arange(state.rank, size, state.world_size, device=self._is_known.device)
        return own[self._is_known[:-1]]

    def get_known(self, view: int) -> Tensor:
        """Return the embeddings of the samples that this rank knows, in the order of their
        indices."""
        return self._embeddings[view, :-1][self._is_known[:-1]]

    def look_up(self, wanted: list[tuple[int, Tensor]], state: State) -> list[Tensor]:
        """Return the embeddings of samples that any rank knows, of pairs of a view and indices.
        Collective."""
        size = self._embeddings.shape[2]
        found = []
        for view, indices in wanted:
            is_own = indices % state.world_size == state.rank
            embeddings = self._embeddings.new_zeros(len(indices), size)
            embeddings[is_own] = self._embeddings[view, indices[is_own] // state.world_size]
            found.append(embeddings)
        if state.world_size > 1:
            collectives.sum_across_ranks(found)
        return found

    def rank_state_dict(self) -> dict[str, Any]:
        return {
            "embeddings": self._embeddings[:, :-1],
            "is_known": self._is_known[:-1],
            "world_size": self.world_size,
        }

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._embeddings = functional.pad(state["embeddings"], (0, 0, 0, 1))
        self._is_known = functional.pad(state["is_known"], (0, 1))
        self.world_size = state["world_size"]
