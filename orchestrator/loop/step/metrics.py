"""Losses and metrics of a phase: columns of each batch's row, and metrics over the samples of all
ranks. Used in workers."""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hooks.matrix import encode_matrix
from hooks.state import State
from orchestrator.errors import TaskError
from orchestrator.loop.step.means import Means
from orchestrator.loop.step.meters import check_ranks_agree, flatten_value
from orchestrator.loop.step.weights import make_zero_loss, tensors_with_gradients
from orchestrator.loop.task_errors import require_loss_terms, require_metrics
from orchestrator.loop.world import World
from orchestrator.task import Task, has_weights
from orchestrator.user_code.failures import find_source_location

Matrix = NDArray[Any]

_log = logging.getLogger("hookyard")


class PhaseMetrics:
    """Losses and metrics of a phase: columns of each batch's row, and means over all batches."""

    def __init__(self, task: Task, state: State, world: World) -> None:
        self._task = task
        self._state = state
        self._world = world
        self._on_cpu = state.device.type == "cpu"
        self.means = Means()
        self.loss_terms: Collection[str] = ()
        """Names of the terms of the loss."""
        self._samples_without_loss = 0
        """Number of samples of this evaluation for which loss() returned None."""
        self._has_warned_of_nan = False

    @property
    def loss_count(self) -> float:
        """Weight of the batch's loss in the mean of the phase."""
        state = self._state
        return state.batch_size if state.loss_weight is None else state.loss_weight

    def record_loss(self, name: str, loss: Tensor) -> None:
        """Record a loss or a term of one, unless the batch has weight 0."""
        if self._state.loss_weight == 0:
            return
        count = self.loss_count
        value: Any = loss.item() if self._on_cpu else loss.detach().double()
        self._state.row[name] = value
        self.means.add(name, value * count, count)

    def make_record_loss(self) -> Callable[[Tensor | None], Tensor | None]:
        """Return a function that records the loss of a batch, if it has one, and returns the loss
        to train on."""
        if has_weights(type(self._task)):
            return self._weigh_loss
        state = self._state
        means = self.means
        on_cpu = self._on_cpu

        def record_loss(loss: Tensor | None) -> Tensor | None:
            if loss is None:
                return None
            value: Any = loss.item() if on_cpu else loss.detach().double()
            state.row["loss"] = value
            means.add("loss", value * state.batch_size, state.batch_size)
            return loss

        return record_loss

    def sum_terms(self, method: Callable[..., Any], loss: Any) -> Tensor:
        """Record each loss term, and return their sum."""
        terms = require_loss_terms(method, loss)
        for name, term in terms.items():
            self.record_loss(self._state.column(name), term)
        self.loss_terms = terms.keys()
        return reduce(add, terms.values())

    def sum_terms_if_any(self, loss: Any) -> Tensor | None:
        """Return the sum of the terms of the loss of a batch of val or test, for which a task may
        return None."""
        if loss is not None:
            return self.sum_terms(self._task.loss, loss)
        self._samples_without_loss += self._state.batch_size
        self._check_losses()
        return None

    def _weigh_loss(self, loss: Tensor | None) -> Tensor | None:
        """Record the loss of a batch with a weight, and return it.

        A batch of weight 0 has a loss of 0, which trains nothing.
        """
        if loss is None:
            return None
        self.record_loss("loss", loss)
        if self._state.loss_weight != 0:
            return loss
        return make_zero_loss(loss, tensors_with_gradients(self._state.output))

    def _check_losses(self) -> None:
        """Raise TaskError if only some batches of the phase have a loss."""
        if self._samples_without_loss and self.means.has("loss"):
            raise TaskError(
                f"loss() returns None for some batches of {self._state.phase}, and a loss for others; return a loss for"
                f" all of them or for none{find_source_location(self._task.loss)}"
            )

    def add_metrics(self) -> None:
        """Add the task's metrics of the batch to their means."""
        method = self._task.metrics
        samples = self._state.batch_size
        metrics = require_metrics(method, method(self._state.output, self._state.batch), samples)
        for name, values in metrics.items():
            if name == "loss" or name in self.loss_terms:
                raise TaskError(
                    f"metrics() and loss() both return '{name}'; rename one of them{find_source_location(method)}"
                )
            total: Any = values.detach().double().sum()
            self.means.add(name, total.item() if self._on_cpu else total, samples)

    def reduce(self, prefix: str, meters: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the phase's metrics across all ranks, as `<prefix>/<name>`, and record the
        matrices of meters; collective.

        This resets the means.
        """
        self._check_losses()
        self._samples_without_loss = 0
        means = self.means
        self.means = Means()
        meters = meters or {}
        metrics, matrices = _reduce_phase(self._task, prefix, means, meters, self._world)
        for name, matrix in matrices.items():
            description = f"{name} {type(meters.get(name)).__name__}".lower()
            # torchmetrics has the targets in rows.
            corner = "target / prediction" if "confusion" in description else ""
            self._state.add_media("matrix", name, partial(encode_matrix, matrix, corner))
        if self._world.is_master and not self._has_warned_of_nan:
            self._warn_of_nan(metrics)
        return metrics

    def _warn_of_nan(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if math.isnan(value):
                self._has_warned_of_nan = True
                _log.warning(
                    "%s is NaN in epoch %d; set hooks.nan_guard={} to stop at the first NaN",
                    name,
                    self._state.epoch_number,
                )
                return


def _reduce_phase(
    task: Task, prefix: str, means: Means, meters: Mapping[str, Any], world: World
) -> tuple[dict[str, float], dict[str, Matrix]]:
    """Return the means and the meters' numbers across all ranks, as `<prefix>/<name>`, and the
    meters' matrices by name; collective.

    Raises TaskError for a meter whose values differ between ranks, are not numbers, or have the
    name of a mean.
    """
    computed_here = {name: flatten_value(name, meter.compute()) for name, meter in meters.items()}
    states, computed = zip(*world.gather((means.state_dict(), computed_here)), strict=True)
    values: dict[str, Any] = {**Means.merge_ranks(states)}
    for name, numbers in computed[0].items():
        check_ranks_agree(task, prefix, name, [ranks.get(name, {}) for ranks in computed])
        duplicates = numbers.keys() & values.keys()
        if duplicates:
            raise TaskError(
                f"meters() returns '{name}', but {prefix}/{min(duplicates)} exists already; rename one of them"
            )
        values |= numbers
    matrices = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    means_and_numbers = {
        f"{prefix}/{name}": value for name, value in values.items() if name not in matrices
    }
    return means_and_numbers, matrices
