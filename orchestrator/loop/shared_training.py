"""Shared training: one run trains; others follow it with observing hooks, validation and checkpoints of their own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import torch

from hooks.hook import WITHIN_ITERATION, Hook, Priority
from hooks.metrics.names import kind_of
from hooks.plan import Call, Plan
from hooks.state import State, Weights
from orchestrator.checkpoint.position import Stage
from orchestrator.checkpoint.training_files import TrainingFiles
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import RunError
from orchestrator.loop.loop import Loop
from orchestrator.loop.report import Report
from orchestrator.loop.rounds import Rounds
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.hooked_contents import HookedContents
from orchestrator.loop.step.metrics import Means
from orchestrator.randomness import random_state, restore_random_state

TRAINING_EVENTS = ("on_start", "on_phase_start", *WITHIN_ITERATION, "on_phase_end")
"""Events of a start or a training phase, where the hooks of all runs are called in one order."""
RUN_EVENTS = ("on_load", "on_end", "on_exception")
"""Events that a hook of the training gets once, not once for each run."""
FOLLOWED = (
    *("optimizer", "scheduler", "scaler", "turn", "phase", "epoch", "iteration", "step", "samples", "max_steps"),
    *("world_samples", "phase_iteration", "iterations_before", "phase_length", "stepped", "epoch_completed"),
    *("batch", "batch_size", "output", "loss", "row", "_gradient_norm", "_parameters", "_sharded"),
)
"""Attributes of a follower's state that are the leader's."""
BY_FOLLOWER = "requested by a follower"
MEMBER_NOTE = "in the turn of run "
"""Prefix of the note with which an error names its run."""


class Leader(Loop):
    """A loop that trains for its followers too. Worker process.

    At the start and in training phases it calls the observing hooks of all runs, each with its run's state and in the
    order in which that run alone would call them. The first run that needs a phase has it trained, so training
    continues after the leader's own run is over. Between two phases each run has its turn. All turns begin with the
    random state that training left, and must end with the same one, with which training continues.
    """

    def take_followers(self, followers: Iterable[Follower]) -> None:
        """Take the followers. Call it before `run`."""
        self.followers, self.is_over, self.trained = list(followers), False, 0
        self.measured: dict[str, Any] = {}
        """Metrics that hooks of the training have added to reports since the last training phase, except the test's."""
        self.stage, self.after_phase = self.cursor.stage, random_state()
        self._after_turn: dict[str, Any] | None = None
        training, self.state.info = self.state.info, ChainMap({}, self.state.info)
        for call in (call for event in TRAINING_EVENTS for call in self.plan.calls[event] if not self.is_own(call)):
            call.run = _with_info(call.run, training)
        everybody: list[Leader | Follower] = [self, *self.followers]
        files = TrainingFiles(HookedContents.files)
        for number, follower in enumerate(self.followers, 1):
            follower.number = number
        for loop in everybody:
            loop.saving.training_files = files
            measuring = [
                _measuring(call, self.measured) if not loop.is_own(call) else call
                for call in loop.plan.calls["on_report"]
            ]
            loop.plan.calls = loop.plan.with_calls({"on_report": measuring}).calls

    def is_own(self, call: Call) -> bool:
        """Return whether a call is an observing hook's of this run."""
        return call.name in self.plan.hooks and self.plan.hooks[call.name].observes

    def end_own_run(self) -> None:
        """End this run, whose training may continue for the others."""
        self.is_over = True
        self.saving.finish_alone()
        own = [call for call in self.plan.calls["on_end"] if self.is_own(call)]
        self.plan.with_calls({"on_end": own}).fire("on_end", self.state)
        self.plan = self.plan.with_calls(
            {event: [call for call in calls if not self.is_own(call)] for event, calls in self.plan.calls.items()}
        )
        # The reasons that ended this run do not end its training.
        self.stopping.reasons = ()
        self.state.stop_reasons.clear()
        self.state.pause_reasons.clear()

    def train_phase(self) -> None:
        """Train to the end of the phase, or to where the run stops within it."""
        if self._after_turn:
            restore_random_state(self._after_turn)
        self._after_turn = None
        self.measured.clear()
        begins_epoch = self._batches is None and self.state.phase_iteration == 0
        for follower in self.followers:
            follower.iterations.means = self.iterations.means
            if begins_epoch:
                follower.cursor.eval_iterations = {}
        own = self.plan
        self.plan = self.iterations.plan = self._shared_plan()
        self.recorder.onlookers = [follower.recorder.recent for follower in self.followers]
        super()._train()
        self.recorder.onlookers = ()
        self.plan = self.iterations.plan = own
        self.trained += 1
        for follower in (follower for follower in self.followers if not follower.is_over):
            follower.follow(self.state)
        self.stage, self.after_phase = self.cursor.stage, random_state()
        self.stopped, self.interrupted = self.stopping.reasons, self.stopping.interrupted

    def turn_ends(self, name: str) -> None:
        """End the turn of a run. Raises RunError if it drew other random numbers than the one before."""
        now = random_state()
        self._after_turn = self._after_turn or now
        if not _is_equal(now, self._after_turn):
            raise RunError(
                f"between two training phases {name} draws other random numbers than the trials that share its"
                " training, so alone it would train differently; set sweep.share_training=false"
            )

    def _begin(self) -> None:
        own, self.plan = self.plan, self._shared_plan()
        super()._begin()
        self.plan = own
        for follower in self.followers:
            follower.run_as_own(follower.begin)

    def _shared_plan(self) -> Plan:
        calls = {event: self._calls_of_all(event) for event in TRAINING_EVENTS}
        calls["on_phase_end"].append(
            Call("(followers)", "on_phase_end", self._pass_results, priority=Priority.HIGHEST - 1)
        )
        return self.plan.with_calls(calls)

    def _calls_of_all(self, event: str) -> list[Call]:
        """Return the calls of all runs that are not over, each in the order in which its run alone would make it."""
        calls = list(self.plan.calls[event])
        for follower in (follower for follower in self.followers if not follower.is_over):
            place = 0
            for call in follower.plan.calls[event]:
                if follower.is_own(call):
                    calls.insert(place, call)
                else:
                    place = next(index for index, other in enumerate(calls) if other.name == call.name)
                place += 1
        return calls

    def _pass_results(self, state: State) -> None:
        """Pass the metrics of a training phase and the requests of its hooks to the followers."""
        for follower in self.followers:
            follower.state.metrics |= state.metrics
            follower.state.stop_reasons += state.stop_reasons
            follower.state.pause_reasons += state.pause_reasons

    def _train(self) -> None:
        self.train_phase()

    def _save_if_asked(self) -> None:
        reasons = self.state.checkpoint_reasons
        if BY_FOLLOWER in reasons:
            reasons[:] = [reason for reason in reasons if reason != BY_FOLLOWER]
            # At the end of the phase each run saves in its turn.
            for follower in self.followers if self.cursor.stage is Stage.TRAIN else ():
                follower.run_as_own(follower.save_within)
        super()._save_if_asked()

    def _finish_if_written(self) -> None:
        for follower in self.followers:
            follower.run_as_own(follower.finish_within)
        super()._finish_if_written()

    def _report(self, *, last: bool = False) -> Report:
        report = super()._report(last=last)
        if not report.final:
            self.turn_ends(self.state.name)
        return report


class Follower(Loop):
    """A run that shares a leader's training. Worker process.

    The leader has the model, optimizer, data and the hooks of the training. The follower has its own observing hooks,
    recorder, checkpoints, and a state that follows the leader's. `hooks` are all hooks of its experiment.
    """

    def __init__(self, leader: Leader, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext) -> None:
        own = {name: hook if hook.observes else leader.plan.hooks.get(name, hook) for name, hook in hooks.items()}
        Rounds.__init__(self, leader.task, experiment, own, context, leader.clock)  # the rest of a loop is the leader's
        self.leader, self.is_over, self._followed, self.number = leader, False, 0, 0
        self.data, self.precisions = leader.data, leader.precisions
        self.timeline, self.schedules = leader.timeline, leader.schedules
        self.state = replace(
            leader.state,
            model=leader.state.module,
            row={},
            metrics={},
            info=ChainMap({}, leader.state.info),
            evaluations={"": Weights()},
            checkpoint_reasons=[],
            stop_reasons=[],
            pause_reasons=[],
            skip_reasons=[],
            **context.hook_fields(experiment),
        )
        self._make_parts_that_train()
        self.state.model = leader.state.model
        calls = self.plan.calls
        for call in (call for event in TRAINING_EVENTS for call in calls[event] if self.is_own(call)):
            call.run = self._following(call)
        alone: dict[str, list[Call]] = {
            event: [call for call in calls[event] if self.is_own(call)] for event in RUN_EVENTS
        }
        alone["on_report"] = [
            Call("(training)", "on_report", self._add_measured, priority=Priority.HIGHEST - 1),
            *calls["on_report"],
        ]
        self.plan.calls = self.plan.with_calls(alone).calls

    def is_own(self, call: Call) -> bool:
        """Return whether a call is an observing hook's of this run."""
        return call.name in self.plan.hooks and self.plan.hooks[call.name].observes

    def run_as_own(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call a part of this run within the leader's training; an error gets a note that names this run."""
        try:
            act(*arguments)
        except Exception as error:
            error.add_note(f"{MEMBER_NOTE}{self.number}")
            raise

    def begin(self) -> None:
        """Check the data when the leader begins."""
        self._refuse_what_is_not_there()
        self.evaluation.refuse_two_of_a_name()

    def restore(self, name: str) -> None:
        """Restore a checkpoint of this run, made at the same place as the leader's."""
        hooks = self.plan.hooks
        self.plan.hooks = {name: hook for name, hook in hooks.items() if hook.observes}
        try:
            super().restore(name)
        finally:
            self.plan.hooks = hooks

    def save_within(self) -> None:
        """Save in the middle of a phase if a hook has asked for it."""
        self.follow(self.leader.state)
        self.cursor.follow(self.leader.cursor, Stage.TRAIN)
        super()._save_if_asked()

    def finish_within(self) -> None:
        """Finish a checkpoint written in the background, where the leader does."""
        if self.saving.is_writing:
            self.follow(self.leader.state)
            self._finish_if_written()

    def _begin(self) -> None:
        """Do nothing: the leader has begun for it."""

    def _following(self, call: Call) -> Callable[..., None]:
        """Return a hook's call for the leader's training, with this run's state."""
        run, own, within = call.run, self.state, call.event in WITHIN_ITERATION

        def follow(state: State, *arguments: Any) -> None:
            self.follow(state)
            run(own, *arguments)
            if within and own.checkpoint_reasons:
                state.request_checkpoint(BY_FOLLOWER)
            if within and (own.stop_reasons or own.pause_reasons):
                raise RunError(
                    f"hook '{call.name}' of {own.name} stops its run in the middle of a training phase, but the trials"
                    " that share its training continue; set sweep.share_training=false"
                )

        return lambda state, *arguments: (
            run(own, *arguments) if state is own else self.run_as_own(follow, state, *arguments)
        )

    def follow(self, state: State) -> None:
        """Copy the position of the leader's training."""
        own = self.state
        for name in FOLLOWED:
            setattr(own, name, getattr(state, name))
        self.iterations.microbatches = self.leader.iterations.microbatches

    def _finished(self) -> bool:
        return self._followed == self.leader.trained and super()._finished()

    def _train(self) -> None:
        """Take the phase that the leader has trained; have it trained if this run is the first to need it."""
        leader, state = self.leader, self.state
        if leader.trained == self._followed:
            leader.train_phase()
        self._followed = leader.trained
        state.row = {}
        self.cursor.follow(leader.cursor, leader.stage)
        restore_random_state(leader.after_phase)
        self.saving.after_training = leader.saving.after_training
        if self.cursor.stage is not Stage.TRAIN:
            self.iterations.means = Means()
            return self._save_if_asked()
        self.stopping.reasons, self.stopping.interrupted = leader.stopped, leader.interrupted
        self._save()
        return None

    def _report(self, *, last: bool = False) -> Report:
        report = super()._report(last=last)
        self.is_over = report.final
        if not report.final:
            self.leader.turn_ends(self.state.name)
        return report

    def _add_measured(self, state: State, metrics: dict[str, Any]) -> None:
        if kind_of(state.phase) != "test":
            metrics.update({name: value for name, value in self.leader.measured.items() if name not in metrics})

    def _close(self) -> None:
        """Do nothing: the leader closes the data."""

    def _end(self) -> None:
        self.is_over = True
        super()._end()


def _with_info(run: Callable[..., None], info: MutableMapping[str, Any]) -> Callable[..., None]:
    """Return a call that writes into the info that all runs share."""

    def call(state: State, *arguments: Any) -> None:
        own, state.info = state.info, info
        try:
            run(state, *arguments)
        finally:
            state.info = own

    return call


def _measuring(call: Call, measured: dict[str, Any]) -> Call:
    """Return a call at a report that also keeps what it adds."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {*metrics}
        call.run(state, metrics)
        if kind_of(state.phase) != "test":
            measured.update(
                {name: value for name, value in metrics.items() if name not in before and name not in measured}
            )

    return replace(call, run=run)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return all(map(_is_equal, one, other))
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )
