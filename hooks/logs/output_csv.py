"""Predictions as CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from hooks.errors import SettingError
from hooks.hook import Hook, Priority, Ranks
from hooks.metrics.names import get_kind
from hooks.sample_indices import find_sample_indices
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
            self._batches[state.evaluation].append(self._make_columns(state))

    def on_phase_end(self, state: State) -> None:
        if not self._batches:
            return
        own = {label: _make_table(batches, state) for label, batches in self._batches.items()}
        self._batches = {}
        ranks = _gather_on_master(own, state)
        if state.is_master:
            for label in own:
                self._write([tables[label] for tables in ranks], label, state)

    def _write(self, tables: Sequence[pd.DataFrame], label: str, state: State) -> None:
        """Write the samples of all ranks with the weights of a label."""
        import pandas as pd

        folder = state.artifacts / (self.name or "output_csv") / state.phase / label
        folder.mkdir(parents=True, exist_ok=True)
        # An empty table has no types.
        filled = [table for table in tables if len(table)] or tables[:1]
        table = pd.concat(filled).sort_index()
        table.to_csv(folder / f"{state.step_name}.csv", index="id" not in table)

    def _make_columns(self, state: State) -> dict[str, Any]:
        """Return the columns of a batch."""
        output = state.output
        _check_output(output)
        columns: dict[str, Any] = {}
        if self.id_key is not None:
            columns["id"] = _get_entry(state.batch, self.id_key, "id_key")
        columns["predicted"] = output.argmax(1)
        if self.target_key is not None:
            target = _get_entry(state.batch, self.target_key, "target_key")
            columns["target"] = _find_classes(target, len(output))
        if self.scores:
            columns["scores"] = output.detach().cpu()
        return columns


def _check_output(output: Any) -> None:
    """Raise ValueError if an output is not the scores of at least two classes."""
    if not isinstance(output, Tensor):
        kind: Any = type(output).__name__
    elif output.ndim != 2 or output.shape[1] < 2:
        kind = tuple(output.shape)
    else:
        return
    raise ValueError(
        f"the output must have shape (samples, classes) with at least two classes, got {kind}"
    )


def _get_entry(batch: Any, key: int | str, parameter: str) -> Any:
    """Return an entry of a batch; raises SettingError if there is none."""
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        entries = f"the length {len(batch)}"
        if isinstance(batch, Mapping):
            entries = "the keys " + ", ".join(map(repr, batch))
        raise SettingError(f"{parameter}: a batch has no entry {key!r}, but {entries}") from error


def _find_classes(target: Any, samples: int) -> Tensor:
    """Return targets as classes, of shape (B,)."""
    classes = torch.as_tensor(target)
    if classes.shape == (samples, 1):
        return classes.squeeze(1)
    if classes.ndim == 2 and len(classes) == samples:
        return classes.argmax(1)
    if classes.shape != (samples,):
        raise SettingError(
            f"target_key: the targets must have shape ({samples},) or ({samples}, classes),"
            f" got {tuple(classes.shape)}"
        )
    return classes


def _make_table(batches: Sequence[Mapping[str, Any]], state: State) -> pd.DataFrame:
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
    table.index = pd.Index(find_sample_indices(state, sizes), name="id")
    return table


def _join(values: Sequence[Any]) -> Any:
    """Return the values of all batches as an array, or as a list if they are no tensors."""
    if not isinstance(values[0], Tensor):
        return list(chain.from_iterable(values))
    joined = torch.cat(list(values)).cpu()
    if joined.dtype == torch.bfloat16:  # NumPy has none
        joined = joined.float()
    return joined.numpy()


def _gather_on_master(own: Any, state: State) -> list[Any]:
    """Return the objects of all ranks on the master, and None for each on other ranks. Collective."""
    if state.world_size == 1:
        return [own]
    objects: list[Any] = [None] * state.world_size
    dist.gather_object(own, objects if state.is_master else None)
    return objects
