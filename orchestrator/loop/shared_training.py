"""Shared training: several runs of one training, with observing hooks, validation and checkpoints of their own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from hooks.hook import WITHIN_ITERATION, Hook
from hooks.metrics.names import kind_of
from hooks.plan import Call, Plan
from hooks.state import State, Weights
from orchestrator.checkpoint.training_files import TrainingFiles
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import RunError
from orchestrator.loop.loop import HookedRun
from orchestrator.loop.report import Report
from orchestrator.loop.rounds import Rounds, make_plan
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.hooked_contents import HookedContents
from orchestrator.loop.training import Training
from orchestrator.randomness import random_state, restore_random_state

TRAINING_EVENTS = ("on_start", "on_phase_start", *WITHIN_ITERATION, "on_phase_end")
"""Events of a start or a training phase, where the hooks of all runs are called in one order."""
ONCE = ("on_load", "on_end", "on_exception")
"""Events that a hook of the training gets once, not once for each run."""
CHANGED_BY_EVALUATION = ("phase", "stepped", "iterations_before", "batch_size")
"""Fields of the state that an evaluation leaves changed."""
ASKED_BY_RUN = "requested by a hook of one run"
MEMBER_NOTE = "in the turn of run "
"""Prefix of the note with which an error names its run."""


class SharedState(State):
    """The state of a run in a shared training. It has some fields of its own; all others are the training's."""

    __slots__ = ("_own", "_training")

    def __init__(self, training: State, own: Mapping[str, Any]) -> None:
        for name, value in {"_training": training, "_own": frozenset(own), **own}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the training: this object has no value for it."""
        return getattr(self._training, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self if name in self._own else self._training, name, value)


class SharedTraining(Training):
    """A training with several runs, which report in turn. Worker process.

    At the start and in training phases it calls the observing hooks of all runs, each with its run's state and in the
    order in which that run alone would call them. The other hooks are the training's, and get its state. The first run
    that needs a phase has it trained. Between two phases each run has its turn. All turns begin with the random state
    that training left, and must end with the same one, with which training continues.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.phases = 0
        """Number of training phases so far."""
        self.files = TrainingFiles(HookedContents.files)
        self.measured: dict[str, Any] = {}
        """Metrics that hooks of the training have added to reports since the last training phase, except the test's."""
        self._plan_alone = self.plan
        self._has_begun = False
        self._left: tuple[dict[str, Any], dict[str, Any]] | None = None
        """The generators, and fields of the state, as the last phase left them."""
        self._after_turn: dict[str, Any] | None = None

    def for_each_run(self, act: Callable[[Rounds], None]) -> None:
        for run in self._active:
            run.call_as_own(act, run)

    def begin(self) -> None:
        """Begin with the first run."""
        if self._has_begun:
            return
        self._has_begun, self.plan = True, self._joint_plan()
        for run in self._active:
            run.call_as_own(run.check_data)
        super().begin()
        for run in self._active:
            run.call_as_own(run.evaluation.check_names)

    def train_phase(self) -> None:
        if self._after_turn:
            restore_random_state(self._after_turn)
        self._after_turn = None
        self.measured.clear()
        self.state.metrics = {}
        self.plan = self.iterations.plan = self._joint_plan()
        self.recorder.onlookers = [run.recorder.recent for run in self._active if run.recorder is not self.recorder]
        super().train_phase()
        self.recorder.onlookers = ()
        self.phases += 1
        self._left = random_state(), {name: getattr(self.state, name) for name in CHANGED_BY_EVALUATION}

    def begin_turn(self) -> None:
        """Begin the turn of a run: everything is as training has left it."""
        assert self._left is not None
        generators, fields = self._left
        restore_random_state(generators)
        for name, value in fields.items():
            setattr(self.state, name, value)

    def end_turn(self, name: str) -> None:
        """End the turn of a run. Raises RunError if it drew other random numbers than the one before."""
        now = random_state()
        self._after_turn = self._after_turn or now
        if not _is_equal(now, self._after_turn):
            raise RunError(
                f"between two training phases {name} draws other random numbers than the trials that share its"
                " training, so alone it would train differently; set sweep.share_training=false"
            )

    def remove(self, run: SharedRun, plan: Plan) -> None:
        """Train without a run from now on. `plan` is the run's without its own hooks."""
        self.runs.remove(run)
        if run.is_first:
            self._plan_alone = plan

    @property
    def _active(self) -> list[SharedRun]:
        return cast(list[SharedRun], self.runs)

    def _joint_plan(self) -> Plan:
        return self._plan_alone.with_calls({event: self._joint_calls(event) for event in TRAINING_EVENTS})

    def _joint_calls(self, event: str) -> list[Call]:
        """Return the calls of all runs, each in the order in which its run alone would make it."""
        calls = list(self._plan_alone.calls[event])
        for run in (run for run in self._active if not run.is_first):
            place = 0
            for call in run.plan.calls[event]:
                if run.is_own(call):
                    calls.insert(place, call)
                else:
                    place = next(index for index, other in enumerate(calls) if other.name == call.name)
                place += 1
        return calls

    def _save_if_asked(self) -> None:
        self._pass_requests()
        super()._save_if_asked()

    def _end_phase(self) -> None:
        super()._end_phase()
        self._pass_requests()

    def _pass_requests(self) -> None:
        """Pass the requests of the training and its hooks to all runs."""
        state = self.state
        for run in self.runs:
            run.state.checkpoint_reasons += [each for each in state.checkpoint_reasons if each != ASKED_BY_RUN]
            run.state.stop_reasons += state.stop_reasons
            run.state.pause_reasons += state.pause_reasons
        state.checkpoint_reasons.clear()


class SharedRun(HookedRun):
    """A run of a shared training. Worker process.

    It has observing hooks, a state, a recorder and checkpoints of its own. `hooks` are all hooks of its experiment.
    The first run of a training has the training's experiment and context, and its hooks that do not observe.
    """

    training: SharedTraining

    def __init__(
        self, training: SharedTraining, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext
    ) -> None:
        self.number, self.is_first = len(training.runs), not training.runs
        self._phases = 0
        """Number of training phases that this run has taken."""
        self._own_hooks = {name: hook for name, hook in hooks.items() if hook.observes}
        plan = self._make_plan(training, hooks, context)
        own = {
            **context.run_fields(experiment),
            "info": ChainMap({}, training.state.info),
            "metrics": {},
            "evaluations": {"": Weights()},
            "checkpoint_reasons": [],
            "stop_reasons": [],
            "pause_reasons": [],
        }
        super().__init__(training, experiment, context, plan, SharedState(training.state, own))
        for call in (call for event in TRAINING_EVENTS for call in plan.calls[event] if self.is_own(call)):
            call.run = self._with_own_state(call)
        self.saving.training_files = training.files
        if not self.is_first:
            self.saving.restored_hooks = self._own_hooks

    def _make_plan(self, training: SharedTraining, hooks: Mapping[str, Hook], context: RunContext) -> Plan:
        plan = training.plan
        if not self.is_first:
            training_hooks = {name: plan.hooks.get(name, hook) for name, hook in hooks.items()}
            plan = make_plan({**training_hooks, **self._own_hooks}, context.world, training.clock)
        on_report = [
            call if self.is_own(call) else _keeping(call, training.measured) for call in plan.calls["on_report"]
        ]
        once = {} if self.is_first else {event: list(filter(self.is_own, plan.calls[event])) for event in ONCE}
        return plan.with_calls({"on_report": on_report, **once})

    def is_own(self, call: Call) -> bool:
        """Return whether a call is an observing hook's of this run."""
        return call.name in self._own_hooks

    def call_as_own(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call a part of this run within the training; an error gets a note that names this run."""
        try:
            act(*arguments)
        except Exception as error:
            error.add_note(f"{MEMBER_NOTE}{self.number}")
            raise

    def leave(self) -> None:
        """End this run. Its training may continue for the others."""
        self.saving.finish_alone()
        plan = self.plan
        plan.with_calls({"on_end": filter(self.is_own, plan.calls["on_end"])}).fire("on_end", self.state)
        self.plan = plan.with_calls(
            {event: [call for call in calls if not self.is_own(call)] for event, calls in plan.calls.items()}
        )
        self.training.remove(self, self.plan)

    def save_now(self) -> None:
        self.training.recorder.sync()  # the rows that led here are the first run's
        super().save_now()

    def _with_own_state(self, call: Call) -> Callable[..., None]:
        """Return a hook's call with this run's state, whatever the state of the training."""
        run, own, training = call.run, self.state, self.training.state

        def call_hook(*arguments: Any) -> None:
            run(own, *arguments)
            if own.phase != "train" or call.event not in WITHIN_ITERATION:
                return
            if own.checkpoint_reasons:
                training.request_checkpoint(ASKED_BY_RUN)
            if own.stop_reasons or own.pause_reasons:
                raise RunError(
                    f"hook '{call.name}' of {own.name} stops its run in the middle of a training phase, but the trials"
                    " that share its training continue; set sweep.share_training=false"
                )

        return lambda state, *arguments: self.call_as_own(call_hook, *arguments)

    def _metrics(self) -> dict[str, Any]:
        metrics = super()._metrics()
        measured = {} if kind_of(self.state.phase) == "test" else self.training.measured
        return metrics | {name: value for name, value in measured.items() if name not in metrics}

    def _finished(self) -> bool:
        return self._phases == self.training.phases and super()._finished()

    def _train(self) -> None:
        """Take the next phase of the training. The first run that needs it has it trained."""
        training = self.training
        if self._phases == training.phases:
            training.train_phase()
        self._phases = training.phases
        training.begin_turn()
        self._take_phase()

    def _report(self, *, last: bool = False) -> Report:
        report = super()._report(last=last)
        if not report.final:
            self.training.end_turn(self.state.name)
        return report

    def _close(self) -> None:
        if self.is_first:  # which ends last
            self.training.close()


def _keeping(call: Call, measured: dict[str, Any]) -> Call:
    """Return a call at a report that also keeps what it adds, for the other runs."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {*metrics, *measured}
        call.run(state, metrics)
        if kind_of(state.phase) != "test":
            measured.update({name: value for name, value in metrics.items() if name not in before})

    return replace(call, run=run)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return all(map(_is_equal, one, other))
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )
