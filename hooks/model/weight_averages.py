"""The averages of a model's weights, and what a checkpoint stores of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from hooks.model.averaged_buffers import AveragedBuffers
from hooks.model.averaged_parameters import AveragedParameters
from hooks.optimizer_name import OptimizerName
from hooks.state import State


@dataclass
class Updates:
    """The updates of an average so far."""

    count: int = 0
    first_step: int = 0
    """Step of the first update; 0 before it."""
    last_step: int = 0
    """Step of the last update; 0 before the first."""

    def add(self, step: int) -> None:
        if self.count == 0:
            self.first_step = step
        self.count += 1
        self.last_step = step


class WeightAverages:
    """Averages of a model's parameters, and perhaps of its buffers, which begin as copies.

    The first average of the parameters and that of the buffers are the ones to use: `applied` puts
    them into the model. Further averages of the parameters only go into checkpoints.

    Args:
        module: The model.
        device: Device of the averages; None for the device of the weights.
        further: Names of the further averages.
        has_buffers: Whether floating-point buffers are averaged too.
    """

    def __init__(
        self,
        module: nn.Module,
        device: str | None,
        *,
        further: Iterable[str] = (),
        has_buffers: bool = False,
    ) -> None:
        self._module = module
        self._parameters = AveragedParameters(module, device)
        self._further = {name: AveragedParameters(module, device) for name in further}
        self.buffers = AveragedBuffers(module, device) if has_buffers else None
        self._updates: defaultdict[OptimizerName, Updates] = defaultdict(Updates)
        """Updates of the averages of each optimizer's parameters."""
        self._buffer_updates = Updates()
        """Updates of the averages of the buffers: one per step, also if optimizers take turns."""
        self._are_applied = False

    def count_copies(self, state: State) -> None:
        """Count the copies with which the averages begin as their first update."""
        for name in state.several or [None]:
            self._updates[name].add(state.step)
        self._buffer_updates.add(state.step)

    def update(
        self,
        step: int,
        compute_coefficients: Callable[[Updates, int], Sequence[float]],
        state: State,
    ) -> None:
        """Move the averages towards the weights, in an optimizer's turn those of its parameters;
        once per step also the averages of the buffers.

        Args:
            step: Number of the step.
            compute_coefficients: Function that returns the coefficient of the weights in each
                average of the parameters, for its update at a step.
            state: The state of the run.
        """
        updates = self._updates[state.turn]
        averages = (self._parameters, *self._further.values())
        coefficients = compute_coefficients(updates, step)
        for average, coefficient in zip(averages, coefficients, strict=True):
            average.update(coefficient, state)
        updates.add(step)

        if self.buffers is not None and self._buffer_updates.last_step != step:
            self.buffers.update(compute_coefficients(self._buffer_updates, step)[0])
            self._buffer_updates.add(step)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the first average and that of the buffers into the model, and restore the raw weights
        on exit, even after an error. Raises RuntimeError when nested."""
        if self._are_applied:
            raise RuntimeError("applied() cannot be nested: the model already uses the averages")
        self._are_applied = True
        try:
            with self._parameters.applied():
                if self.buffers is None:
                    yield
                else:
                    with self.buffers.applied():
                        yield
        finally:
            self._are_applied = False

    # Checkpoints

    def select_exact(self, applied: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages that are more precise than the model's state dict with them.

        Args:
            applied: The state dict while the averages are in the model.

        Returns:
            The averages whose dtype differs from that of the weights, by name.
        """
        averages = self._parameters.to_dict()
        if self.buffers is not None:
            averages |= self.buffers.to_dict()
        return {
            name: average
            for name, average in averages.items()
            if average.dtype != applied[name].dtype
        }

    def get_further(self) -> dict[str, dict[str, Tensor]]:
        """Return the further averages: those of all parameters by the average's name."""
        return {name: average.to_dict() for name, average in self._further.items()}

    def map_keys(self) -> dict[str, str]:
        """Return the name of the average of each key of the state dict that is a parameter.

        Key and name differ for tied parameters.
        """
        names = {id(parameter): name for name, parameter in self._parameters.parameters.items()}
        return {
            key: names[id(parameter)]
            for key, parameter in self._module.named_parameters(remove_duplicate=False)
            if id(parameter) in names
        }

    def list_updates(self) -> dict[str, Any]:
        """Return the numbers of the updates so far."""
        return {
            "parameters": {name: asdict(updates) for name, updates in self._updates.items()},
            "buffers": asdict(self._buffer_updates),
        }

    def restore(
        self,
        values: Mapping[str, Tensor],
        further: Mapping[str, Mapping[str, Tensor]],
        updates: Mapping[str, Any],
    ) -> None:
        """Load the averages of a checkpoint; raises ValueError if they do not fit.

        Args:
            values: First average and average of the buffers by name, such as a state dict with the
                exact averages over it.
            further: The further averages, as `get_further` returns them.
            updates: The updates, as `list_updates` returns them.
        """
        self._parameters.restore(values)
        if self.buffers is not None:
            self.buffers.restore(values)
        for name, average in self._further.items():
            average.restore(further[name])
        for turn, saved in updates["parameters"].items():
            self._updates[turn] = Updates(**saved)
        self._buffer_updates = Updates(**updates["buffers"])
