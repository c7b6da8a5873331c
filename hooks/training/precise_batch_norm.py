"""Precise BatchNorm statistics for validation."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from hooks.distributed import collectives
from hooks.hook import Hook
from hooks.model.eval_mode import borrowing
from hooks.model.layers import BatchNorm
from hooks.private_torch import tree_map_only
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State


@dataclass
class PreciseBatchNorm(Hook):
    """Recompute BatchNorm statistics at the end of each training phase, over many samples with the
    same weights.

        precise_batch_norm: {num_samples: 10000}

    Running averages include activations of earlier weights. The statistics are those of the weights
    that validation uses: of the averages of `ema`, unless these come with averages of the buffers.
    With several sets of weights, they are those of the main metric's. The hook draws shuffled
    training samples without affecting the training order; each value has the same weight, whatever
    its batch or rank. The model stays in training mode, so dropout acts as in training, and layers in
    evaluation mode do not change. Training itself is the same without the hook. Costs a forward
    pass of these samples per validation, and one sum across ranks.
    Source: ClassyVision PreciseBatchNormHook; "Rethinking 'Batch' in BatchNorm" (Wu and Johnson,
    2021).
    """

    num_samples: Annotated[int, Ge(1)]
    """Number of training samples across all ranks, each at most once."""
    cache_samples: bool = False
    """Caching of these samples in host memory, instead of loading them again."""

    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._cache: list[Any] | None = None

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            fsdp="it runs the model over each rank's own batches", custom_loop=NEEDS_MODEL
        )

    def on_start(self, state: State) -> None:
        if any(isinstance(layer, nn.SyncBatchNorm) for layer in state.module.modules()):
            raise ValueError(
                "SyncBatchNorm is not supported: its ranks would wait for each other at every batch"
            )

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        with _using_validated_weights(state):
            recompute(state, self._batches(state))

    def _batches(self, state: State) -> Iterator[Any]:
        if not self.cache_samples:
            return self._load(state)
        if self._cache is None:
            self._cache = [_move(batch, torch.device("cpu")) for batch in self._load(state)]
        return (_move(batch, state.device) for batch in self._cache)

    def _load(self, state: State) -> Iterator[Any]:
        remaining, rest = divmod(self.num_samples, state.world_size)
        if state.rank < rest:
            remaining += 1
        if not remaining:
            return
        for batch in state.fresh_batches("train", shuffled=True):
            yield batch
            remaining -= state.samples_in(batch)
            if remaining <= 0:
                return


@contextmanager
def _using_validated_weights(state: State) -> Iterator[None]:
    """Put the weights of the next validation into the model, unless they bring buffers of their
    own."""
    only, *others = state.evaluations.values()
    weights = state.find_evaluated_weights() if others else only
    buffers = list(state.module.buffers())
    with weights(state):
        if all(map(is_, buffers, state.module.buffers())):
            yield
            return
    yield


def _move(batch: Any, device: torch.device) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


@torch.no_grad()
def recompute(state: State, batches: Iterable[Any]) -> None:
    """Set running mean and variance of all BatchNorm layers to the statistics of their inputs with
    the current weights.

    One pass over `batches` of this rank, in training mode: dropout acts, as when the running
    averages were taken. Sums are added across ranks, so each value has the same weight, which
    torch.optim.swa_utils.update_bn does not ensure. The variance is unbiased, as that of
    BatchNorm's running averages. Collective.
    """
    layers = [
        layer
        for layer in state.module.modules()
        if isinstance(layer, BatchNorm) and layer.running_mean is not None and layer.training
    ]
    if not layers:
        return
    sums: dict[nn.Module, Tensor] = {}
    for layer in layers:
        length = 2 * layer.num_features + 1
        sums[layer] = torch.zeros(length, dtype=torch.float64, device=state.device)

    def add_inputs(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Add up the inputs of a layer: sums and squares per channel, and the number of values."""
        values = inputs[0].transpose(0, 1).flatten(1).double()
        count = values.shape[1]
        parts = [values.sum(1), values.square().sum(1), values.new_full((1,), count)]
        sums[layer] += torch.cat(parts)
        # Normalize with the batch's statistics, as in training.
        layer.training = count > 1

    with ExitStack() as handles, borrowing(state):
        for layer in layers:
            handles.enter_context(layer.register_forward_pre_hook(add_inputs))
        for batch in batches:
            state.forward(state.module, batch)
    collectives.sum_across_ranks(sums.values(), state.world_size)
    for layer in layers:
        _set_statistics(layer, sums[layer])


def _set_statistics(layer: BatchNorm, sums: Tensor) -> None:
    total, squares, (count,) = torch.split(sums, [layer.num_features, layer.num_features, 1])
    if layer.running_mean is None or layer.running_var is None:
        return
    # The forward pass may not use the layer.
    if count == 0:
        return
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance * count / (count - 1).clamp(min=1))
