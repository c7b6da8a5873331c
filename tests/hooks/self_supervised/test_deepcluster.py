from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.self_supervised.deepcluster import UNASSIGNED, DeepCluster
from hooks.self_supervised.shared.k_means import cluster
from orchestrator.loop.world import World
from tests.hooks.self_supervised.clouds import Clouds, CloudSet, train
from tests.ranks import on_ranks

STEPS = 6
"""Steps in an epoch of 48 samples in batches of 8."""
CLOUDS = Clouds(prototypes=0)


def steps(count: int) -> Interval:
    return Interval(count, "steps")


def everything(size: int = 48) -> list[Tensor]:
    """Each view of all training samples."""
    dataset = Clouds(train=size).data()["train"]
    samples = [dataset[index][0] for index in range(size)]
    return [torch.stack(views) for views in zip(*samples, strict=True)]


# The original, with a memory of all samples in one place


class Original(Hook):
    """Keeps what a memory by sample, filled by one pass, must hold; looks before the hook does."""

    priority = 0

    def __init__(self) -> None:
        self.memory = torch.zeros(2, 0, 5)
        self.at_epoch: list[Tensor] = []

    @torch.no_grad()
    def on_phase_start(self, state: State) -> None:
        if state.phase != "train":
            return
        if not self.memory.shape[1]:
            state.module.eval()
            self.memory = torch.stack(state.module(everything()[:2]))
            state.module.train()
        self.at_epoch.append(self.memory.clone())

    def on_forward(self, state: State) -> None:
        if state.phase == "train":
            for view in (0, 1):
                self.memory[view, state.batch[1]] = state.output[view].detach()


class Seen(Hook):
    """What the loss was given, and the hook's memory and assignments as each epoch begins."""

    priority = 100

    def __init__(self, hook: DeepCluster) -> None:
        self.hook = hook
        self.memory: list[Tensor] = []
        self.centroids: list[list[Tensor]] = []
        self.assignments: list[Tensor] = []
        self.batches: list[tuple[Tensor, Tensor]] = []

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            self.memory.append(self.hook.rank_state_dict()["memory"]["embeddings"].clone())
            self.centroids.append(list(self.hook.state_dict()["centroids"]))
            self.assignments.append(self.hook.state_dict()["assignments"])

    def on_loss(self, state: State) -> None:
        if state.phase == "train":
            self.batches.append((state.batch[1], state.output.assignments))


def test_the_memory_has_the_newest_embedding_of_every_sample() -> None:
    original = Original()
    hook = DeepCluster(clusters=[4])
    seen = Seen(hook)
    train(
        Clouds(prototypes=0, batch_norm=True, val=9),
        {"original": original, "deepcluster": hook, "seen": seen},
    )
    assert len(seen.memory) == 3
    for mine, theirs in zip(seen.memory, original.at_epoch, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not torch.equal(seen.memory[0], seen.memory[1])


def test_each_head_has_the_clusters_of_its_view_and_each_sample_that_of_its_embedding() -> None:
    hook = DeepCluster(clusters=[3, 4, 5])
    seen = Seen(hook)
    train(CLOUDS, {"deepcluster": hook, "seen": seen})
    for memory, centroids, assignments in zip(
        seen.memory, seen.centroids, seen.assignments, strict=True
    ):
        assert [len(one) for one in centroids] == [3, 4, 5]
        for head, view in enumerate((0, 1, 0)):
            # A fixed point of k-means: clustering again, from there, changes nothing but the last
            # bits.
            again, nearest = cluster(memory[view], centroids[head], 1, world_size=1)
            torch.testing.assert_close(
                (memory[view] @ centroids[head].t()).argmax(dim=1), assignments[head]
            )
            torch.testing.assert_close(again, centroids[head], rtol=1e-3, atol=1e-3)
            assert (nearest == assignments[head]).float().mean() > 0.9
    for iteration, (indices, found) in enumerate(seen.batches):
        assert torch.equal(found, seen.assignments[iteration // STEPS][:, indices])


def test_validation_samples_are_assigned_to_the_nearest_centroid() -> None:
    hook = DeepCluster(clusters=[4, 3])
    found = []

    class OfVal(Hook):
        def on_loss(self, state: State) -> None:
            if state.phase == "val":
                found.append(state.output)

    train(Clouds(prototypes=0, val=9), {"deepcluster": hook, "seen": OfVal()}, epochs=1)
    for views in found:
        for head in range(2):
            expected = (views.embeddings[head] @ views.centroids[head].t()).argmax(dim=1)
            assert torch.equal(views.assignments[head], expected)


def test_samples_missing_from_the_first_pass_join_when_they_are_seen() -> None:
    """50 samples in batches of 8, drop_last: the last two are in no batch of the unshuffled
    pass."""
    hook = DeepCluster(clusters=[4])
    seen = Seen(hook)
    train(
        Clouds(train=50, prototypes=0),
        {"deepcluster": hook, "seen": seen},
        loader={"drop_last": True},
    )
    first = seen.assignments[0][0]
    assert (first == UNASSIGNED).nonzero().squeeze(1).tolist() == [48, 49]
    assert (seen.assignments[-1] != UNASSIGNED).all()


def test_more_clusters_than_samples_are_refused() -> None:
    with pytest.raises(
        HookError, match="clusters: must be at most the number of samples in the memory, 48; got 49"
    ):
        train(CLOUDS, {"deepcluster": DeepCluster(clusters=[4, 49])})


class ShiftedSet(CloudSet):
    """Clouds whose indices begin with another number than 0."""

    first = 0

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        views, place = super().__getitem__(index)
        return views, place + self.first


@pytest.mark.parametrize(("first", "index"), [(-1, -1), (1, 48)])
def test_an_index_outside_of_the_training_data_is_refused(first: int, index: int) -> None:
    dataset = ShiftedSet(48, 0)
    dataset.first = first

    class Shifted(Clouds):
        def data(self) -> dict[str, Dataset[Any]]:
            return {"train": dataset}

    with pytest.raises(
        HookError,
        match=f"batch has the index {index}; the indices of the training data are 0 to 47",
    ):
        train(Shifted(prototypes=0), {"deepcluster": DeepCluster(clusters=[4])})


# A restart


def hooks(every: int = 5) -> dict[str, Hook]:
    return {
        "deepcluster": DeepCluster(clusters=[4, 6]),
        "checkpoint": Checkpoint(every=steps(every), keep=None),
    }


def state_of(hook: Hook) -> Any:
    whole = {**hook.state_dict(), **hook.rank_state_dict()["memory"]}
    whole["centroids"] = [one.tolist() for one in whole["centroids"]]
    return {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in whole.items()
    }


def one_rank_of(rank: int, world_size: int, root: str, restore: str | None) -> Any:
    task = Clouds(train=47, prototypes=0)
    trained = train(
        task, hooks(), root=Path(root), restore=restore, world=World(rank, world_size), batch_size=4
    )
    return trained.weights, state_of(trained.loop.runs[0].plan.hooks["deepcluster"]), trained.losses


def whole_and_resumed(rank: int, world_size: int, root: str) -> Any:
    return [one_rank_of(rank, world_size, root, restore) for restore in (None, "step-00000010")]


def test_two_ranks_resume_within_a_phase_with_their_shards(tmp_path: Path) -> None:
    for whole, (weights, state, losses) in on_ranks(whole_and_resumed, 2, str(tmp_path)):
        others, other_state, other_losses = whole
        assert weights == others
        assert state == other_state
        assert losses == other_losses[10:]


def test_memory_is_refilled_after_a_change_of_the_number_of_ranks(tmp_path: Path) -> None:
    one_rank_of(0, 1, str(tmp_path), None)
    (weights, state, _), (others, other_state, _) = on_ranks(
        one_rank_of, 2, str(tmp_path), "step-00000010"
    )
    assert weights == others
    assert [len(state["is_known"]), len(other_state["is_known"])] == [24, 23]
    assert all(state["is_known"])
    assert all(other_state["is_known"])
    assert state["assignments"] == other_state["assignments"]


class Embeddings(Hook):
    """The embeddings of each view of all training samples when a training phase begins, before the
    hook."""

    priority = 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.views: list[Tensor] = []

    @torch.no_grad()
    def on_phase_start(self, state: State) -> None:
        if state.phase == "train":
            self.views.append(torch.stack(state.module(everything(self.size))))


@pytest.mark.parametrize(("epochs", "restore"), [(1, "epoch-0001"), (2, "step-00000010")])
@pytest.mark.parametrize(
    ("size", "views"), [(40, [0, 1]), (56, [0, 1]), (48, [0, 2]), (48, [1])], ids=str
)
def test_resume_with_other_data_or_views_fills_the_memory_and_clusters_again(
    tmp_path: Path, epochs: int, restore: str, size: int, views: list[int]
) -> None:
    """After an epoch, and within one."""
    train(CLOUDS, hooks(), root=tmp_path, epochs=epochs)
    hook = DeepCluster(clusters=[4, 6], assigned_views=views)
    embeddings = Embeddings(size)
    seen = Seen(hook)
    others = {"embeddings": embeddings, "deepcluster": hook, "seen": seen}
    train(Clouds(train=size, prototypes=0), others, root=tmp_path, restore=restore)
    expected = embeddings.views[0][views]
    torch.testing.assert_close(seen.memory[0], expected)
    for head, centroids in enumerate(seen.centroids[0]):
        nearest = (expected[head % len(views)] @ centroids.t()).argmax(dim=1)
        assert torch.equal(seen.assignments[0][head], nearest)


def _train_on_rank_0(rank: int, world_size: int) -> list[float]:
    return [] if rank else train(CLOUDS, {"deepcluster": DeepCluster(clusters=[4])}).losses


def test_a_run_of_one_rank_waits_for_no_other_process_of_its_group() -> None:
    alone = train(CLOUDS, {"deepcluster": DeepCluster(clusters=[4])}).losses
    assert on_ranks(_train_on_rank_0) == [alone, []]


def test_assigned_view_that_a_batch_lacks_is_refused() -> None:
    hook = DeepCluster(clusters=[4], assigned_views=[0, 3])
    with pytest.raises(HookError, match=r"assigned_views: a batch has 3 views.* no view 3"):
        train(CLOUDS, {"deepcluster": hook}, epochs=1)
