"""The samples of a rank among those of all."""

import torch

from hooks import State
from hooks.self_supervised.shared.sample_memory import SampleMemory


def test_a_rank_keeps_the_newest_embedding_of_its_own_samples() -> None:
    """The second of two ranks keeps the samples 1, 3 and 5 of seven."""
    state = State(rank=1, world_size=2)
    memory = SampleMemory()
    memory.clear(7, [0], state)
    memory.put(torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([1, 2, 5]), state)
    memory.put(torch.tensor([[[4.0], [5.0]]]), torch.tensor([6, 5]), state)
    assert memory.list_known(state).tolist() == [1, 5]
    assert memory.get_known(0).tolist() == [[1.0], [5.0]]

    other = SampleMemory()
    other.load_rank_state_dict(memory.rank_state_dict())
    assert other.fits(7, [0], state)
    assert other.list_known(state).tolist() == [1, 5]
    assert other.get_known(0).tolist() == [[1.0], [5.0]]


def test_a_memory_fits_the_samples_views_and_ranks_that_it_is_made_for() -> None:
    state = State()
    memory = SampleMemory()
    assert not memory.fits(3, [0, 1], state)
    memory.clear(3, [0, 1], state)
    assert memory.fits(3, [0, 1], state)
    assert not memory.fits(4, [0, 1], state)
    assert not memory.fits(3, [0, 2], state)
    assert not memory.fits(3, [0, 1], State(world_size=2))


def test_embeddings_are_found_by_view_and_index() -> None:
    state = State()
    memory = SampleMemory()
    memory.clear(3, [0, 1], state)
    embeddings = torch.arange(12.0).view(2, 3, 2)
    memory.put(embeddings, torch.arange(3), state)
    found = memory.look_up([(1, torch.tensor([2, 0])), (0, torch.tensor([1]))], state)
    assert found[0].tolist() == [[10.0, 11.0], [6.0, 7.0]]
    assert found[1].tolist() == [[2.0, 3.0]]
