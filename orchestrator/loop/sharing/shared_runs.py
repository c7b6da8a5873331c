"""The runs that share a training: their plans, requests and turns. Runs in workers."""

from collections.abc import Generator, Sequence
from typing import Any

import torch

from hooks.private_torch import tree_leaves
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import RunError
from orchestrator.loop.report import Report
from orchestrator.loop.runs import FinishRound, Runs
from orchestrator.loop.saving.hooked_contents import HookedContents
from orchestrator.loop.sharing.failed_run import marking_failed_run
from orchestrator.loop.sharing.shared_calls import (
    REQUESTED_BY_RUN,
    TRAINING_EVENTS,
    merge_calls,
)
from orchestrator.loop.sharing.shared_run import Member, build_shared_run
from orchestrator.loop.training import Training
from orchestrator.randomness import random_state, restore_random_state

CHANGED_BY_EVALUATION = ("phase", "stepped", "iterations_before", "batch_size", "loss_weight")
"""Fields of the state that an evaluation changes and does not restore."""


class SharedRuns(Runs):
    """Several runs that share a training: their plans, fields of the state and requests.

    There is one state. Each run has its own values of the `OWN_FIELDS`, and so has the training.
    Each run has its own observing hooks. At the start and in training phases they are called with
    their run's own fields, in the order that they have when the run trains alone. All other hooks
    belong to the training, and see its fields; the first run provides them.
    """

    def __init__(self, training: Training, members: Sequence[Member]) -> None:
        self._training = training
        files = TrainingFiles(HookedContents.files)
        self._hook_metrics: dict[str, Any] = {}
        """Metrics that hooks of the training added to reports since the last training phase, except
        test metrics."""
        runs = []
        for index, member in enumerate(members):
            with marking_failed_run(index):
                run = build_shared_run(training, member, index, self._hook_metrics, files)
            runs.append(run)
        self.all = runs

    # Training

    def join_plans(self) -> None:
        """Train with the calls of all active runs, in one merged order."""
        first = self.all[0]
        others = [run for run in self.active if run is not first]
        plan = first.remaining_plan
        plan = plan.replace_calls(
            {event: merge_calls(event, plan, others) for event in TRAINING_EVENTS}
        )
        self._training.use_plan(plan)

    def begin_phase(self) -> None:
        """Prepare a training phase for the active runs."""
        self.join_plans()
        self._hook_metrics.clear()
        recorder = self._training.recorder
        recorder.other_buffers = [
            run.recorder.recent for run in self.active if run.recorder is not recorder
        ]
        self._training.state.metrics = {}

    def end_phase(self) -> None:
        """Pass the requests of a training phase to the active runs, and no rows of the training
        until the next one."""
        self.forward_requests()
        self._training.recorder.other_buffers = ()

    def forward_requests(self) -> None:
        """Pass the requests of the training and its hooks to the active runs."""
        state = self._training.state
        checkpoints = [reason for reason in state.checkpoint_reasons if reason != REQUESTED_BY_RUN]
        stops = state.stop_reasons
        pauses = state.pause_reasons
        state.checkpoint_reasons.clear()
        for run in self.active:
            with run.own_fields:
                state.checkpoint_reasons += checkpoints
                state.stop_reasons += stops
                state.pause_reasons += pauses

    # Between two training phases

    def take_turns(self, finish_round: FinishRound) -> Generator[Report, None, None]:
        """Let each active run finish its round, and yield their reports.

        Every turn begins with the random state at the end of the phase. All must end with equal
        random states, because training continues from there. Raises RunError if they do not.
        """
        state = self._training.state
        fields = {name: getattr(state, name) for name in CHANGED_BY_EVALUATION}
        random_state_before = random_state()
        random_state_after: dict[str, Any] | None = None
        for run in self.active:
            restore_random_state(random_state_before)
            for name, value in fields.items():
                setattr(state, name, value)
            continues = yield from finish_round(run)
            if not continues:
                continue
            now = random_state()
            if random_state_after is None:
                random_state_after = now
            elif not _is_equal(now, random_state_after):
                with run.own_fields:
                    raise RunError(
                        f"{state.name} and the trials that share its training drew different random"
                        " numbers; set sweep.share_training: false"
                    )
        if random_state_after is not None:
            restore_random_state(random_state_after)


def _is_equal(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two random states are equal."""
    pairs = zip(tree_leaves(state), tree_leaves(other), strict=True)
    return all(_is_leaf_equal(*pair) for pair in pairs)


def _is_leaf_equal(leaf: Any, other: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return torch.equal(leaf, other)
    return bool(leaf == other)
