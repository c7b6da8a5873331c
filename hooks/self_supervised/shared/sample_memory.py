"""The newest embedding of each training sample."""

from collections.abc import Sequence
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
        self._size = 0
        """Number of samples of all ranks; 0 before `clear`."""
        self._views: list[int] = []
        """Indices of the views."""
        self._world_size = 0
        """Number of ranks among which the samples are divided."""

    def clear(self, size: int, views: Sequence[int], state: State) -> None:
        """Forget all samples, and divide `size` samples among the ranks of a run."""
        self._size = size
        self._views = list(views)
        self._world_size = state.world_size
        count = len(range(state.rank, size, state.world_size))
        self._is_known = torch.zeros(count + 1, dtype=torch.bool, device=state.device)
        self._embeddings = torch.zeros(len(views), count + 1, 0, device=state.device)

    def fits(self, size: int, views: Sequence[int], state: State) -> bool:
        """Return whether the memory is for this number of samples, these views and the ranks of a run."""
        own = (self._size, self._views, self._world_size)
        return own == (size, list(views), state.world_size)

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

    def list_known(self, state: State) -> Tensor:
        """Return the indices of the samples that this rank knows."""
        own = torch.arange(state.rank, self._size, state.world_size, device=self._is_known.device)
        return own[self._is_known[:-1]]

    def get_known(self, view: int) -> Tensor:
        """Return the embeddings of the samples that this rank knows, in the order of their
        indices."""
        return self._embeddings[view, :-1][self._is_known[:-1]]

    def look_up(self, wanted: list[tuple[int, Tensor]], state: State) -> list[Tensor]:
        """Return the embeddings of samples that any rank knows, of pairs of a view and indices.
        Collective."""
        length = self._embeddings.shape[2]
        results = []
        for view, indices in wanted:
            is_own = indices % state.world_size == state.rank
            embeddings = self._embeddings.new_zeros(len(indices), length)
            embeddings[is_own] = self._embeddings[view, indices[is_own] // state.world_size]
            results.append(embeddings)
        collectives.sum_across_ranks(results, state.world_size)
        return results

    def rank_state_dict(self) -> dict[str, Any]:
        return {
            "embeddings": self._embeddings[:, :-1],
            "is_known": self._is_known[:-1],
            "size": self._size,
            "views": self._views,
            "world_size": self._world_size,
        }

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._embeddings = functional.pad(state["embeddings"], (0, 0, 0, 1))
        self._is_known = functional.pad(state["is_known"], (0, 1))
        self._size = state["size"]
        self._views = state["views"]
        self._world_size = state["world_size"]
