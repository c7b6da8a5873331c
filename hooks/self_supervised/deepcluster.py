"""DeepCluster v2: offline clustering."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor
from torch.nn import functional

from hooks.counts import format_count
from hooks.distributed import collectives
from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.model.eval_mode import evaluating
from hooks.self_supervised.shared.assigned_views import check_assigned_views
from hooks.self_supervised.shared.batch_sizes import gather_batch_sizes, gather_rows
from hooks.self_supervised.shared.k_means import assign, cluster
from hooks.self_supervised.shared.sample_memory import SampleMemory
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

    A batch is `(views, indices)` with the samples' indices in the training data. The task's forward
    pass returns a list of embeddings, (B, D) for each view.

    The hook replaces them by `ClusteredViews`, from which the loss takes the embeddings, the
    centroids of each head, and each sample's cluster in each head. In val and test, samples are
    assigned to the nearest centroid.

    Before the first epoch, a pass over the training data computes the embeddings of each sample's
    assigned views. Training then replaces them by newer ones. Each epoch begins with the clustering
    of all embeddings by spherical k-means; head h clusters assigned view h modulo their number. A
    resume with another number of ranks, other training data or other assigned views repeats the
    pass.

    Each rank stores the embeddings of its share of the samples. The ranks cluster them together,
    and gather the embeddings of their batches in each iteration.

    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et
    al., 2020), VISSL InitMemoryHook and ClusterMemoryHook.
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
    state_fields: ClassVar[tuple[str, ...]] = ("_centroids", "_assignments", "_clustering")
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_memory",)
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_forward"})
    """Only in a phase's last iteration, because batch sizes may differ."""

    def __post_init__(self) -> None:
        self._memory = SampleMemory()
        self._centroids: list[Tensor] = []
        """Of each head, (K, D)."""
        self._assignments = Tensor()
        """Cluster of each training sample in each head, (heads, N), or UNASSIGNED."""
        self._clustering: dict[str, Any] = {}
        """Epoch, data and settings of the last clustering; empty before the first."""

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain_need_of_output(fsdp="it runs the model over each rank's own batches")

    def on_phase_start(self, state: State) -> None:
        """Cluster once per epoch, also if an epoch has several phases or resumes. A resume within an
        epoch clusters again if the clusters are of other data or settings."""
        self._memory.move(state.device)
        self._centroids = [centroids.to(state.device) for centroids in self._centroids]
        self._assignments = self._assignments.to(state.device)
        if state.phase != "train":
            return
        size = _count_samples(state)
        if not self._memory.fits(size, self.assigned_views, state):
            self._fill_memory(size, state)
        clustering = {
            "epoch": state.epoch,
            "size": size,
            "assigned_views": self.assigned_views,
            "clusters": self.clusters,
        }
        if self._clustering != clustering:
            self._cluster(size, state)
            self._clustering = clustering

    def on_forward(self, state: State) -> None:
        views, indices = state.batch
        check_assigned_views(self.assigned_views, len(views))
        embeddings = _normalize_views(state.output, len(views))
        assigned = torch.stack([embeddings[view] for view in self.assigned_views]).detach()
        if state.phase == "train":
            assignments = self._assignments[:, indices]
            sizes = gather_batch_sizes(state)
            all_embeddings = gather_rows(assigned.transpose(0, 1), sizes).transpose(0, 1)
            self._memory.put(all_embeddings, gather_rows(indices, sizes), state)
        else:
            assignments = self._assign_nearest(assigned)
        state.output = ClusteredViews(embeddings, self._centroids, assignments)

    def _fill_memory(self, size: int, state: State) -> None:
        """Fill the memory by one pass over this rank's share of the training data."""
        self._memory.clear(size, self.assigned_views, state)
        with evaluating(state):
            for views, indices in state.fresh_batches("train"):
                _check_indices(indices, size)
                check_assigned_views(self.assigned_views, len(views))
                assigned = [views[view] for view in self.assigned_views]
                output = state.forward(state.module, (assigned, indices))
                embeddings = _normalize_views(output, len(assigned))
                self._memory.put(torch.stack(embeddings), indices, state)

    def _cluster(self, size: int, state: State) -> None:
        """Compute the centroids of each head, and the clusters of all samples. Collective."""
        local_indices = self._memory.list_known(state)
        # Clusters count from 1 here, so that the sum over ranks has 0 for an unknown sample.
        numbers = torch.zeros(len(self.clusters), size, dtype=torch.int64, device=state.device)
        self._centroids = self._sample_initial_centroids(size, state)
        for head, initial in enumerate(self._centroids):
            samples = self._memory.get_known(self._get_view(head))
            self._centroids[head], nearest = cluster(
                samples, initial, self.iterations, state.world_size
            )
            numbers[head, local_indices] = nearest + 1
        collectives.sum_across_ranks([numbers], state.world_size)
        self._assignments = torch.where(numbers > 0, numbers - 1, UNASSIGNED)

    def _sample_initial_centroids(self, size: int, state: State) -> list[Tensor]:
        """Return embeddings of random samples for each head: equal on all ranks, different in each
        epoch. Collective."""
        is_known = torch.zeros(size, dtype=torch.int64, device=state.device)
        is_known[self._memory.list_known(state)] = 1
        collectives.sum_across_ranks([is_known], state.world_size)
        known = is_known.nonzero().squeeze(1)
        if max(self.clusters) > len(known):
            raise SettingError(
                f"clusters: must be at most the number of samples in the memory, {len(known)};"
                f" got {max(self.clusters)}"
            )

        seed = int(state.config.get("seed", 0)) * 1_000_003 + state.epoch
        generator = torch.Generator().manual_seed(seed)
        wanted = []
        for head, count in enumerate(self.clusters):
            order = torch.randperm(len(known), generator=generator)
            wanted.append((self._get_view(head), known[order[:count].to(known.device)]))
        return self._memory.look_up(wanted, state)

    def _assign_nearest(self, embeddings: Tensor) -> Tensor:
        if not self._centroids:
            raise RuntimeError(
                "there are no clusters yet: DeepCluster makes them when training begins;"
                " train before validating"
            )
        nearest = [
            assign(embeddings[self._get_view(head)], centroids)
            for head, centroids in enumerate(self._centroids)
        ]
        return torch.stack(nearest)

    def _get_view(self, head: int) -> int:
        return head % len(self.assigned_views)


def _check_indices(indices: Tensor, size: int) -> None:
    """Raise ValueError for an index that is not one of `size` samples."""
    for index in (int(indices.min()), int(indices.max())):
        if not 0 <= index < size:
            raise ValueError(
                f"a batch has the index {index}; the indices of the training data are 0 to {size - 1}"
            )


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
