"""Sizes of the batches of all ranks."""

import torch
import torch.distributed as dist

from hooks.state import State


def gather_batch_sizes(state: State) -> list[int]:
    """Return each rank's number of samples in this training batch.

    All batches but an epoch's last are full, so ranks exchange their sizes only there, and always
    for an iterable dataset. Collective then.
    """
    is_last = state.phase_iteration + 1 >= state.phase_length
    if state.world_size == 1 or (state.full_batches and not is_last):
        return [state.batch_size] * state.world_size
    sizes = torch.zeros(state.world_size, dtype=torch.int64, device=state.device)
    sizes[state.rank] = state.batch_size
    dist.all_reduce(sizes)
    all_sizes: list[int] = sizes.tolist()
    return all_sizes
