"""DeepCluster v2: offline clustering."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor
from torch.nn import functional

from hooks.counts import format_count
from hooks.distributed import collectives
from hooks.distributed.collectives import gather
from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.model.eval_mode import evaluating
from hooks.self_supervised.shared.batch_sizes import gather_batch_sizes
from hooks.setup import Setup
from hooks.state import State

UNASSIGNED = -100
"""Assignment of a sample that is not in the memory; cross entropy's ignore_index."""


@dataclass(frozen=True)
class ClusteredViews:
    """Input of DeepCluster's loss."""

    embeddings: list[Tensor]
    """Unit-length embeddings of each view, (B, D), with gradients."""
    centroids: list[Tensor]
    """Unit-length centroids of each head, (K, D), without gradients."""
    assignments: Tensor
    """Cluster of each sample in each head, (heads, B) int64, or UNASSIGNED."""


@dataclass
class DeepCluster(Hook):
    """Cluster the embeddings of all training samples, for the loss of DeepCluster v2.

        deepcluster: {clusters: [300, 300, 300], assigned_views: [0, 1]}

    The task's forward pass returns a list of embeddings, (B, D) for each view, and a batch is
    `(views, indices)` with the samples' indices in the training data. The hook replaces the output
    by `ClusteredViews`. It keeps the newest embedding of each sample for each assigned view, and
    clusters them when an epoch begins, by spherical k-means across all ranks; head h clusters
    assigned view h modulo their number. One pass over the training data fills the memory, and again
    after a restart with another number of ranks. In val and test, samples are assigned to the
    nearest centroid. Each iteration gathers the batch's embeddings. Source: "Unsupervised Learning
    of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), VISSL
    InitMemoryHook and ClusterMemoryHook.
    """

    clusters: Annotated[list[Annotated[int, Gt(1)]], MinLen(1)] = field(
        default_factory=lambda: [3000, 3000, 3000]
    )
    """Number of clusters of each head."""
    assigned_views: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)] = field(
        default_factory=lambda: [0, 1]
    )
    """Indices of the views whose embeddings are stored: the large crops."""
    iterations: Annotated[int, Ge(1)] = 10
    """Number of k-means iterations per clustering."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    collective: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_centroids", "_assignments", "_epoch")
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_forward"})
    """Only in a phase's last iteration, because batch sizes may differ."""

    def __post_init__(self) -> None:
        # Both have an additional slot for samples that other ranks keep, because selecting them
        # would synchronize.
        self._memory = torch.zeros(0, 1, 0)
        self._remembered = torch.zeros(1, dtype=torch.bool)
        self._ranks = 0
        self._centroids: list[Tensor] = []
        self._assignments = Tensor()
        self._epoch = -1

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain_need_of_output(fsdp="it runs the model over each rank's own batches")

    def on_phase_start(self, state: State) -> None:
        """Cluster once per epoch, also if an epoch has several phases or resumes."""
        self._memory = self._memory.to(state.device)
        self._remembered = self._remembered.to(state.device)
        self._centroids = [centroids.to(state.device) for centroids in self._centroids]
        self._assignments = self._assignments.to(state.device)
        if state.phase != "train":
            return
        if self._ranks != state.world_size:
            self._fill(state)
        if self._epoch != state.epoch:
            self._cluster(state)
            self._epoch = state.epoch

    def on_forward(self, state: State) -> None:
        views, indices = state.batch
        embeddings = _normalize_views(state.output, len(views))
        remembered = torch.stack([embeddings[view] for view in self.assigned_views]).detach()
        if state.phase == "train":
            assignments = self._assignments[:, indices]
            sizes = gather_batch_sizes(state)
            all_embeddings = gather(remembered.transpose(0, 1), sizes).transpose(0, 1)
            self._remember(all_embeddings, gather(indices, sizes), state)
        else:
            assignments = self._assign_nearest(remembered)
        state.output = ClusteredViews(embeddings, self._centroids, assignments)

    def rank_state_dict(self) -> dict[str, Any]:
        return {
            "memory": self._memory[:, :-1],
            "remembered": self._remembered[:-1],
            "ranks": self._ranks,
        }

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._memory = functional.pad(state["memory"], (0, 0, 0, 1))
        self._remembered = functional.pad(state["remembered"], (0, 1))
        self._ranks = state["ranks"]

    # The memory

    def _fill(self, state: State) -> None:
        """Fill the memory by one pass over this rank's share of the training data."""
        size = _count_samples(state)
        count = len(range(state.rank, size, state.world_size))
        self._remembered = torch.zeros(count + 1, dtype=torch.bool, device=state.device)
        self._memory = torch.zeros(
            len(self.assigned_views), len(self._remembered), 0, device=state.device
        )
        with evaluating(state):
            for views, indices in state.fresh_batches("train"):
                if int(indices.max()) >= size or int(indices.min()) < 0:
                    raise ValueError(
                        f"a batch has the index {int(indices.max())},"
                        f" and the last index of the training data is {size - 1}"
                    )
                assigned = [views[view] for view in self.assigned_views]
                output = state.forward(state.module, (assigned, indices))
                embeddings = _normalize_views(output, len(assigned))
                self._remember(torch.stack(embeddings), indices, state)
        self._ranks = state.world_size

    def _remember(self, embeddings: Tensor, indices: Tensor, state: State) -> None:
        """Keep the embeddings (V, B, D) of the samples that this rank stores."""
        if not self._memory.shape[2]:
            self._memory = embeddings.new_zeros(*self._memory.shape[:2], embeddings.shape[2])
        is_local = indices % state.world_size == state.rank
        slots = torch.where(is_local, indices // state.world_size, len(self._remembered) - 1)
        self._memory[:, slots] = embeddings
        self._remembered[slots] = True

    # The clusters

    def _cluster(self, state: State) -> None:
        size = _count_samples(state)
        device = state.device
        remembered = self._remembered[:-1]
        local_indices = torch.arange(state.rank, size, state.world_size, device=device)[remembered]
        known = torch.zeros(size, dtype=torch.int64, device=device).index_fill_(0, local_indices, 1)
        across_ranks = state.world_size > 1
        if across_ranks:
            collectives.total([known])

        starts = self._draw_starts(known.nonzero().squeeze(1), state)
        self._centroids = self._look_up(starts, state)
        assignments = torch.zeros(len(self.clusters), size, dtype=torch.int64, device=device)
        for head, centroids in enumerate(self._centroids):
            samples = self._memory[self._view(head), :-1][remembered]
            self._centroids[head], nearest = cluster(
                samples, centroids, self.iterations, across_ranks=across_ranks
            )
            assignments[head, local_indices] = nearest + 1
        if across_ranks:
            collectives.total([assignments])
        self._assignments = torch.where(assignments > 0, assignments - 1, UNASSIGNED)

    def _draw_starts(self, known: Tensor, state: State) -> list[Tensor]:
        """Return the indices of each head's first centroids: equal on all ranks, different in each
        epoch."""
        if max(self.clusters) > len(known):
            raise SettingError(
                f"clusters: must be at most the number of samples in the memory, {len(known)};"
                f" got {max(self.clusters)}"
            )
        seed = int(state.config.get("seed", 0)) * 1_000_003 + state.epoch
        generator = torch.Generator().manual_seed(seed)
        return [
            known[torch.randperm(len(known), generator=generator)[:count].to(known.device)]
            for count in self.clusters
        ]

    def _look_up(self, starts: list[Tensor], state: State) -> list[Tensor]:
        """Return the embeddings of samples of any rank, of the view of each head."""
        embeddings = [
            self._memory.new_zeros(len(indices), self._memory.shape[2]) for indices in starts
        ]
        for head, indices in enumerate(starts):
            own = indices % state.world_size == state.rank
            embeddings[head][own] = self._memory[self._view(head), indices[own] // state.world_size]
        if state.world_size > 1:
            collectives.total(embeddings)
        return embeddings

    def _assign_nearest(self, embeddings: Tensor) -> Tensor:
        if not self._centroids:
            raise RuntimeError(
                "there are no clusters yet: DeepCluster makes them when training begins;"
                " train before validating"
            )
        nearest = [
            assign(embeddings[self._view(head)], centroids)
            for head, centroids in enumerate(self._centroids)
        ]
        return torch.stack(nearest)

    def _view(self, head: int) -> int:
        return head % len(self.assigned_views)


def _count_samples(state: State) -> int:
    dataset = state.loaders["train"].dataset
    if not hasattr(dataset, "__len__"):
        raise TypeError(
            "DeepCluster needs map-style train data: the samples of an iterable dataset have no index"
        )
    return len(dataset)


def _normalize_views(output: Any, count: int) -> list[Tensor]:
    """Return the embeddings of each view at unit length; raises TypeError for other outputs."""
    is_list = isinstance(output, list | tuple) and len(output) == count
    if not is_list or not all(isinstance(part, Tensor) for part in output):
        raise TypeError(
            f"forward() must return {format_count(count, 'tensor')} of shape (B, D), one per view,"
            f" got {type(output).__name__}"
        )
    return [functional.normalize(embeddings.float(), dim=1) for embeddings in output]


_CHUNK = 16384
"""Samples to compare with all centroids at once, which limits memory."""


@torch.no_grad()
def cluster(
    samples: Tensor, centroids: Tensor, iterations: int, *, across_ranks: bool
) -> tuple[Tensor, Tensor]:
    """Return unit-length centroids (K, D) after k-means, and the nearest centroid of each local
    sample, (N,) int64.

    `samples` (N, D) are this rank's, of unit length and any number. The centroid of an empty
    cluster stays, as in VISSL. With `across_ranks`, sums are added across ranks, so all ranks get
    the same bits. Source: "Concept Decompositions for Large Sparse Text Data Using Clustering"
    (Dhillon and Modha, 2001).
    """
    for _ in range(iterations):
        nearest = assign(samples, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, samples)
        counts = torch.bincount(nearest, minlength=len(centroids))
        if across_ranks:
            collectives.total([sums, counts])
        centroids = torch.where(
            counts.unsqueeze(1) > 0, functional.normalize(sums, dim=1), centroids
        )
    return centroids, assign(samples, centroids)


@torch.no_grad()
def assign(samples: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each sample, (N,) int64."""
    return torch.cat(
        [(chunk @ centroids.t()).argmax(dim=1) for chunk in torch.split(samples, _CHUNK)]
    )
