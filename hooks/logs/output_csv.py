"""Predictions as CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from hooks.errors import SettingError
from hooks.hook import Hook, Priority, Ranks
from hooks.metrics.names import get_kind
from hooks.state import State

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class OutputCSV(Hook):
    """Write the predicted class and the target of each val and test sample to a CSV file per phase.

        output_csv: {id_key: id, target_key: label, scores: true}

    `<artifacts>/<hook's name>/val/step-00000100.csv` has `id`, `predicted`, `target` and, with
    `scores`, the outputs as `score_0`, `score_1`, ... Averaged weights that are also validated have
    their own folder, such as `val/ema`. Outputs are scores of shape (B, C); targets are classes
    (B,), or one-hot or soft (B, C). Each rank keeps its samples in memory until the phase ends; the
    master then writes all in dataset order. Source: ClassyVision OutputCSVHook.
    """

    id_key: int | str | None = None
    """Index or key of the samples' ids in a batch; by default their indices in the dataset. Set it
    for an iterable dataset that shards itself, whose order is unknown."""
    target_key: int | str | None = 1
    """Index or key of the targets in a batch; null for no targets."""
    scores: bool = False
    """Scores of all classes, as columns `score_0`, `score_1` and so on."""
    phases: tuple[Literal["val", "test"], ...] = ("val", "test")
    """Kinds of phases to write."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.ALL
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._batches: dict[str, list[dict[str, Any]]] = {}
        """Columns of each batch by the label of the evaluated weights; empty between phases."""

    def on_phase_start(self, state: State) -> None:
        self._batches = {}
        if get_kind(state.phase) in self.phases:
            self._batches = {label: [] for label in state.evaluations}

    def on_loss(self, state: State) -> None:
        if self._batches:
            self._batches[state.evaluation].append(self._columns(state))

    def on_phase_end(self, state: State) -> None:
        if not self._batches:
            return
        import pandas as pd

        own = {label: _table(batches, state) for label, batches in self._batches.items()}
        self._batches = {}
        ranks: list[Any] | None = [own] * state.world_size if state.is_master else None
        if state.world_size > 1:
            dist.gather_object(own, ranks)
        if ranks is None:
            return
        for label in own:
            folder = state.artifacts / (self.name or "output_csv") / state.phase / label
            folder.mkdir(parents=True, exist_ok=True)
            tables = [rank[label] for rank in ranks if len(rank[label])] or [own[label]]
            table = pd.concat(tables).sort_index()
            table.to_csv(folder / f"{state.step_name}.csv", index="id" not in table)

    def _columns(self, state: State) -> dict[str, Any]:
        output = state.output
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                "the output must have shape (samples, classes) with at least two classes,"
                f" got {shape}"
            )
        columns: dict[str, Any] = {}
        if self.id_key is not None:
            columns["id"] = _entry(state.batch, self.id_key, "id_key")
        columns["predicted"] = output.argmax(1)
        if self.target_key is not None:
            target = _entry(state.batch, self.target_key, "target_key")
            columns["target"] = _classes(target, len(output))
        if self.scores:
            columns["scores"] = output.detach().cpu()
        return columns


def _table(batches: list[dict[str, Any]], state: State) -> pd.DataFrame:
    """Return a rank's samples by their indices in the dataset."""
    import pandas as pd

    columns = {}
    for name in batches[0] if batches else ():
        columns[name] = _join([batch[name] for batch in batches])
    scores = columns.pop("scores", None)
    table = pd.DataFrame(columns)
    if scores is not None:
        table = table.join(pd.DataFrame(scores).add_prefix("score_"))
    sizes = [len(batch["predicted"]) for batch in batches]
    table.index = pd.Index(_indices(state, sizes), name="id")
    return table


def _indices(state: State, sizes: Sequence[int]) -> Sequence[int]:
    """Return the indices of this rank's samples, in the order of the task's sampler.

    `sizes` are those of its batches. Of an iterable dataset, the indices are positions in it.
    """
    loader: Any = state.loaders.get(state.phase)
    sampler: Any = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    count = sum(sizes)
    # A sampler without `set_epoch` may return a different order each time.
    indices = list(islice(sampler, count + 1)) if hasattr(sampler, "set_epoch") else []
    if len(indices) == count:
        return indices
    is_iterable = isinstance(getattr(loader, "dataset", None), IterableDataset)
    return _positions(state, sizes, loader.num_workers if is_iterable else 0)


def _positions(state: State, sizes: Sequence[int], processes: int) -> list[int]:
    """Return the positions of this rank's samples in a dataset of which each of its `processes`
    reads every n-th sample; they give a batch in turn."""
    readers = max(1, processes)
    stride = state.world_size * readers
    begins = [state.rank + state.world_size * reader for reader in range(readers)]
    positions: list[int] = []
    for number, size in enumerate(sizes):
        begin = begins[number % readers]
        begins[number % readers] = begin + stride * size
        positions += range(begin, begin + stride * size, stride)
    return positions


def _entry(batch: Any, key: int | str, parameter: str) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        entries = f"the length {len(batch)}"
        if isinstance(batch, Mapping):
            entries = "the keys " + ", ".join(map(repr, batch))
        raise SettingError(f"{parameter}: a batch has no entry {key!r}, but {entries}") from error


def _classes(target: Any, samples: int) -> Tensor:
    """Return targets as classes, of shape (B,)."""
    classes = torch.as_tensor(target)
    if classes.shape == (samples, 1):
        return classes.squeeze(1)
    if classes.ndim == 2 and len(classes) == samples:
        return classes.argmax(1)
    if classes.shape != (samples,):
        raise ValueError(
            f"target() must return shape ({samples},) or ({samples}, classes),"
            f" got {tuple(classes.shape)}"
        )
    return classes


def _join(values: list[Any]) -> Any:
    if not isinstance(values[0], Tensor):
        return list(chain.from_iterable(values))
    joined = torch.cat(values).cpu()
    if joined.dtype == torch.bfloat16:  # NumPy has none
        joined = joined.float()
    return joined.numpy()
