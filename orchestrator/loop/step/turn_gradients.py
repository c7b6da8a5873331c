"""The gradients of one optimizer's turns, which ranks average themselves. Runs in workers."""

from collections.abc import Sequence

from torch import nn

from hooks.distributed import collectives
from hooks.parameter_names import join_names
from orchestrator.errors import TaskError
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location


class TurnGradients:
    """The gradients of the `parameters` that the optimizer `name` trains in its turns.

    All ranks must have gradients of the same parameters, in each step.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[nn.Parameter],
        module: nn.Module,
        task: Task,
        world: World,
    ) -> None:
        self._name = name
        self._parameters = parameters
        self._module = module
        self._task = task
        self._world = world
        self._expected: tuple[bool, ...] | None = None
        """For each parameter, whether it had a gradient when ranks first averaged them; None before
        that."""

    def average(self) -> None:
        """Average the gradients across all ranks; collective.

        Raises TaskError if ranks or steps differ in which parameters have one.
        """
        existing = tuple(parameter.grad is not None for parameter in self._parameters)
        if self._expected is None:
            self._check_same(self._world.gather(existing))
            self._expected = existing
        elif existing != self._expected:
            self._check_same([self._expected, existing])
        gradients = (parameter.grad for parameter in self._parameters)
        collectives.average(gradient for gradient in gradients if gradient is not None)

    def _check_same(self, flags: Sequence[tuple[bool, ...]]) -> None:
        """Raise TaskError if these `flags` of the parameters differ."""
        for parameter, *has_gradient in zip(self._parameters, *flags, strict=True):
            if len({*has_gradient}) == 1:
                continue
            named = self._module.named_parameters()
            names = [name for name, other in named if other is parameter]
            raise TaskError(
                f"the loss of turn '{self._name}' must depend on the same parameters in each iteration and on"
                f" each rank, but not on {join_names(names)}{find_source_location(self._task.turns)}"
            )
