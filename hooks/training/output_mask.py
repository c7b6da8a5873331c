"""Mask for classes that the evaluation data lacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hooks.distributed import collectives
from hooks.errors import SettingError
from hooks.hook import Hook
from hooks.setup import Setup
from hooks.state import State


@dataclass
class OutputMask(Hook):
    """Mask the logits of classes that the labels of a val or test phase lack: they become minus
    infinity.

        output_mask: {target: 1}

    For a model with more classes than the evaluation data. Logits have shape (B, C) or (B, C, ...),
    alone or in a list or tuple. Labels are class numbers of any shape; numbers outside 0 to C - 1
    are ignored. Loss and metrics see the masked logits, so a loss with label smoothing becomes
    infinite. All ranks gather the labels in one pass over the data when a phase first begins.
    Source: VISSL ModelOutputMaskHook.
    """

    target: int | str = 1
    """Index or key of the labels in a batch."""

    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._occurs: dict[str, Tensor] = {}

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain_need_of_output()

    def on_phase_start(self, state: State) -> None:
        if state.phase != "train" and state.phase not in self._occurs:
            self._occurs[state.phase] = self._find_classes(state)

    def on_forward(self, state: State) -> None:
        if state.phase != "train":
            state.output = _mask(state.output, self._occurs[state.phase])

    def _find_classes(self, state: State) -> Tensor:
        """Return for each class number whether it occurs on any rank."""
        counts = torch.zeros(0, dtype=torch.long, device=state.device)
        for batch in state.fresh_batches(state.phase):
            more = torch.bincount(self._get_labels(batch), minlength=len(counts))
            counts = more + functional.pad(counts, (0, len(more) - len(counts)))
        if state.world_size > 1:
            length = torch.tensor([len(counts)], device=state.device)
            dist.all_reduce(length, op=dist.ReduceOp.MAX)
            counts = functional.pad(counts, (0, int(length) - len(counts)))
            collectives.sum_across_ranks([counts], state.world_size)
        return counts > 0

    def _get_labels(self, batch: Any) -> Tensor:
        try:
            labels = batch[self.target]
        except (KeyError, IndexError) as error:
            known = f"; it has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
            raise SettingError(f"target: the batch has no entry {self.target!r}{known}") from error
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            kind = _describe(labels)
            raise SettingError(
                f"target: the labels, batch[{self.target!r}], must be class numbers, got {kind}"
            )
        return labels[labels >= 0].long()


def _mask(output: Any, occurs: Tensor) -> Any:
    if type(output) in (list, tuple):
        return type(output)(_mask(part, occurs) for part in output)
    if not isinstance(output, Tensor) or output.ndim < 2 or not output.is_floating_point():
        raise TypeError(
            "the output must be logits of shape (B, C, ...), or a list of such,"
            f" got {_describe(output)}"
        )
    classes = output.shape[1]
    # Negative padding truncates.
    absent = ~functional.pad(occurs, (0, classes - len(occurs)))
    other_dimensions = [1] * (output.ndim - 2)
    return output.masked_fill(absent.view(classes, *other_dimensions), float("-inf"))


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__
