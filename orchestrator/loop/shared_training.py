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
from orchestrator.randomness import restore_random_state, storable_random_state

OF_TRAINING = ("on_start", "on_phase_start", *WITHIN_ITERATION, "on_phase_end")
"""The events of a training phase, and of the beginning: those of all runs in one order."""
OF_THE_RUN = ("on_load", "on_end", "on_exception")
"""Events that a hook of the training hears once, and not once for each run that shares it."""
FOLLOWED = (
    "optimizer",
    "scheduler",
    "scaler",
    "turn",
    "phase",
    "epoch",
    "iteration",
    "step",
    "samples",
    "max_steps",
    "world_samples",
    "phase_iteration",
    "iterations_before",
    "phase_length",
    "max_steps",
    "stepped",
    "epoch_completed",
    "batch",
    "batch_size",
    "output",
    "loss",
    "row",
    "_gradient_norm",
    "_parameters",
    "_sharded",
)
"""What a follower's state has of the training."""
FOR_A_FOLLOWER = "a follower asks for it"
TURN = "in the turn of run "
"""How a failure says of which run it is, in a note."""


class Leader(Loop):
    """A loop that trains for its followers too. Worker process.

    As training begins and in its phases the observing hooks of all of them are called, each with the state of its own
    run, and where it would be if that trained alone. A phase is trained when the first of them needs it, so that
    training goes on after the leader's own run is over. Between two phases each has its turn, which begins with the
    random numbers that training has left: as nothing but observing goes on, all turns must end with the same, with
    which training goes on.
    """

    def board(self, followers: Iterable[Follower]) -> None:
        """Takes followers on; call it before `run`."""
        self.followers, self.is_over, self.trained = list(followers), False, 0
        self.measured: dict[str, Any] = {}
        """What hooks of the training have put into the reports since the last phase of it, but for those of the
        test."""
        self.stage, self.after_phase = self.cursor.stage, storable_random_state()
        self._after_turn: dict[str, Any] | None = None
        training, self.state.info = self.state.info, ChainMap({}, self.state.info)
        for call in (call for event in OF_TRAINING for call in self.plan.calls[event] if not self.is_own(call)):
            call.run = _noting(call.run, training)
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
        """Whether a call is of this run's, and not of the training's."""
        return call.name in self.plan.hooks and self.plan.hooks[call.name].observes

    def leave(self) -> None:
        """This run is over, and its training may go on for the others."""
        self.is_over = True
        self.saving.finish_alone()
        own = [call for call in self.plan.calls["on_end"] if self.is_own(call)]
        self.plan.with_calls({"on_end": own}).fire("on_end", self.state)
        self.plan = self.plan.with_calls(
            {event: [call for call in calls if not self.is_own(call)] for event, calls in self.plan.calls.items()}
        )
        # What ended this run does not end its training.
        self.stopping.reasons = ()
        self.state.stop_reasons.clear()
        self.state.pause_reasons.clear()

    def train_phase(self) -> None:
        """Trains up to where the training phase ends, or the run within it."""
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
        self.stage, self.after_phase = self.cursor.stage, storable_random_state()
        self.stopped, self.interrupted = self.stopping.reasons, self.stopping.interrupted

    def turn_ends(self, name: str) -> None:
        """A run has had its turn; raises RunError where it has drawn other random numbers than the one before it."""
        now = storable_random_state()
        self._after_turn = self._after_turn or now
        if not _alike(now, self._after_turn):
            raise RunError(
                f"between two phases of training {name} draws other random numbers than the trials that it shares its"
                " training with, so that alone it would train otherwise. Set sweep.share_training=false"
            )

    def _begin(self) -> None:
        own, self.plan = self.plan, self._shared_plan()
        super()._begin()
        self.plan = own
        for follower in self.followers:
            follower.answer_for(follower.begin)

    def _shared_plan(self) -> Plan:
        calls = {event: self._calls_of_all(event) for event in OF_TRAINING}
        calls["on_phase_end"].append(
            Call("(followers)", "on_phase_end", self._tell_followers, priority=Priority.HIGHEST - 1)
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
                    place = next(index for index, one in enumerate(calls) if one.name == call.name)
                place += 1
        return calls

    def _tell_followers(self, state: State) -> None:
        """Gives followers the metrics of a phase of training, and what hooks of the training asked for in it."""
        for follower in self.followers:
            follower.state.metrics |= state.metrics
            follower.state.stop_reasons += state.stop_reasons
            follower.state.pause_reasons += state.pause_reasons

    def _train(self) -> None:
        self.train_phase()

    def _save_if_asked(self) -> None:
        reasons = self.state.checkpoint_reasons
        if FOR_A_FOLLOWER in reasons:
            reasons[:] = [reason for reason in reasons if reason != FOR_A_FOLLOWER]
            # At the phase's end each does so in its turn.
            for follower in self.followers if self.cursor.stage is Stage.TRAIN else ():
                follower.answer_for(follower.save_within)
        super()._save_if_asked()

    def _finish_if_written(self) -> None:
        for follower in self.followers:
            follower.answer_for(follower.finish_within)
        super()._finish_if_written()

    def _report(self, *, last: bool = False) -> Report:
        report = super()._report(last=last)
        if not report.final:
            self.turn_ends(self.state.name)
        return report


class Follower(Loop):
    """A run whose training is a leader's. Worker process.

    Model, optimizer, data and the hooks of the training are the leader's; the state, which follows the leader's,
    observing hooks, recorder, store and what follows from these are its own. `hooks` are all of its experiment's.
    """

    def __init__(self, leader: Leader, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext) -> None:
        own = {name: hook if hook.observes else leader.plan.hooks.get(name, hook) for name, hook in hooks.items()}
        Rounds.__init__(self, leader.task, experiment, own, context, leader.clock)  # all else of a loop is the leader's
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
        for call in (call for event in OF_TRAINING for call in calls[event] if self.is_own(call)):
            call.run = self._following(call)
        alone: dict[str, list[Call]] = {
            event: [call for call in calls[event] if self.is_own(call)] for event in OF_THE_RUN
        }
        alone["on_report"] = [
            Call("(training)", "on_report", self._add_measured, priority=Priority.HIGHEST - 1),
            *calls["on_report"],
        ]
        self.plan.calls = self.plan.with_calls(alone).calls

    def is_own(self, call: Call) -> bool:
        """Whether a call is of this run's, and not of the training's."""
        return call.name in self.plan.hooks and self.plan.hooks[call.name].observes

    def answer_for(self, act: Callable[..., None], *arguments: Any) -> None:
        """Does what is this run's in the midst of the leader's training; a note says so of what fails."""
        try:
            act(*arguments)
        except Exception as error:  # whatever it is, it goes on with a word of whose it was
            error.add_note(f"{TURN}{self.number}")
            raise

    def begin(self) -> None:
        """Begins when the leader does, where its hooks have begun."""
        self._refuse_what_is_not_there()
        self.evaluation.refuse_two_of_a_name()

    def restore(self, name: str) -> None:
        """Puts a checkpoint of this run back, which was made where that of the leader was."""
        hooks = self.plan.hooks
        self.plan.hooks = {name: hook for name, hook in hooks.items() if hook.observes}
        try:
            super().restore(name)
        finally:
            self.plan.hooks = hooks

    def save_within(self) -> None:
        """Saves where the leader may, in the middle of a phase, if a hook has asked for it."""
        self.follow(self.leader.state)
        self.cursor.follow(self.leader.cursor, Stage.TRAIN)
        super()._save_if_asked()

    def finish_within(self) -> None:
        """Puts a checkpoint that was written meanwhile in its place, where the leader does."""
        if self.saving.is_writing:
            self.follow(self.leader.state)
            self._finish_if_written()

    def _begin(self) -> None:
        """It has begun with the leader."""

    def _following(self, call: Call) -> Callable[..., None]:
        """A hook's call that is made in the leader's training, with this run's state."""
        run, own, within = call.run, self.state, call.event in WITHIN_ITERATION

        def follow(state: State, *arguments: Any) -> None:
            self.follow(state)
            run(own, *arguments)
            if within and own.checkpoint_reasons:
                state.request_checkpoint(FOR_A_FOLLOWER)
            if within and (own.stop_reasons or own.pause_reasons):
                raise RunError(
                    f"hook '{call.name}' of {own.name} asks in the middle of a training phase for the run to end, which"
                    " the trials that it shares its training with do not. Set sweep.share_training=false"
                )

        return lambda state, *arguments: (
            run(own, *arguments) if state is own else self.answer_for(follow, state, *arguments)
        )

    def follow(self, state: State) -> None:
        """Takes over where the leader's training stands."""
        own = self.state
        for name in FOLLOWED:
            setattr(own, name, getattr(state, name))
        self.iterations.microbatches = self.leader.iterations.microbatches

    def _finished(self) -> bool:
        return self._followed == self.leader.trained and super()._finished()

    def _train(self) -> None:
        """Takes up what the leader has trained, which it does now where nobody has asked for it before."""
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
        """It is the leader's."""

    def _end(self) -> None:
        self.is_over = True
        super()._end()


def _noting(run: Callable[..., None], info: MutableMapping[str, Any]) -> Callable[..., None]:
    """A hook's call of the training, which notes what it knows where all runs see it."""

    def noting(state: State, *arguments: Any) -> None:
        own, state.info = state.info, info
        try:
            run(state, *arguments)
        finally:
            state.info = own

    return noting


def _measuring(call: Call, measured: dict[str, Any]) -> Call:
    """A call at a report that keeps what it adds."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {*metrics}
        call.run(state, metrics)
        if kind_of(state.phase) != "test":
            measured.update(
                {name: value for name, value in metrics.items() if name not in before and name not in measured}
            )

    return replace(call, run=run)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_alike(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return all(map(_alike, one, other))
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )
