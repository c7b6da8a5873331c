"""The base of the runners of training iterations. Runs in workers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import CodeType
from typing import Any, cast

import torch

from hooks.event_plan import Plan
from orchestrator.loop.model.gradient_sync import set_gradient_sync
from orchestrator.loop.step.metrics import PhaseMetrics
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.step.training_stages import TrainingStages
from orchestrator.loop.step.weights import WeighedBatches, count_microbatches


class TrainingRunner(ABC):
    """Runner of training iterations, whose loop over batches says in which order the stages of an
    iteration follow each other."""

    def __init__(self, context: StepContext) -> None:
        self.task = context.task
        self.state = context.state
        self.clock = context.clock
        self.world = context.world
        self.precisions = context.precisions
        self.precision = context.precision
        self.stages = TrainingStages(context)
        self.microbatches = 1
        """Number of micro-batches that a training batch is split into."""

    @classmethod
    def get_loop_code(cls) -> CodeType:
        """Return the code of the loop over batches, by which a stack tells that an iteration
        runs."""
        return cls._train.__code__

    @property
    def metrics(self) -> PhaseMetrics:
        """Losses and metrics of the phase."""
        return self.stages.metrics

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        """The only optimizer."""
        return cast(torch.optim.Optimizer, self.state.optimizer)

    def use_plan(self, plan: Plan) -> None:
        """Fire events by another plan from the next phase on."""
        self.stages.plan = plan

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one of a phase's batches per `next`."""
        self.stages.weighed = batches if isinstance(batches, WeighedBatches) else None
        return self._train(batches)

    @abstractmethod
    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one batch per `next`."""

    def _advance_microbatch(self, position: int, microbatches: int) -> tuple[int, int]:
        """Return the next micro-batch's position in its step, from 1, and their number in it.

        The epoch's last step may have fewer. Ranks synchronize gradients only in the last
        micro-batch.
        """
        state = self.state
        if position < microbatches:
            position += 1
        else:
            position = 1
            microbatches = count_microbatches(state)
        state.at_step_boundary = position == microbatches
        set_gradient_sync(state.model, state.at_step_boundary)
        return position, microbatches
