"""Shared training: one training loop for several runs, each with its own hooks, validation and
checkpoints."""

from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import filterfalse
from typing import Any, TypeVar

import torch

from hooks.hook import WITHIN_ITERATION, Hook
from hooks.metrics.names import kind_of
from hooks.plan import Call, Plan
from hooks.private_torch import tree_leaves
from hooks.state import State
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import RunError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.own_fields import FieldSwitch, OwnFields
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.state.contents import LoadedCheckpoint
from orchestrator.loop.state.hooked_contents import HookedContents
from orchestrator.loop.stopping import Stop
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import RunContext, make_plan
from orchestrator.randomness import random_state, restore_random_state
from orchestrator.task import Task

T = TypeVar("T")

TRAINING_EVENTS = ("on_start", "on_phase_start", *WITHIN_ITERATION, "on_phase_end")
"""Events at the start and during training phases. The hooks of all runs are called in one merged
order."""
EVENTS_FIRED_ONCE = ("on_load", "on_end", "on_exception")
"""Events that fire once in total for a hook of the training, not once per run."""
CHANGED_BY_EVALUATION = ("phase", "stepped", "iterations_before", "batch_size", "loss_weight")
"""Fields of the state that an evaluation changes and does not restore."""
REQUESTED_BY_RUN = "requested by a hook of one run"
RUN_NOTE_PREFIX = "in the turn of run "
"""Prefix of the note that says which run raised an error."""


class SharedContents(HookedContents):
    """Checkpoint contents that runs share. Only the first run restores them: the other checkpoints
    hold the same."""

    _is_restored = False

    def restore(self, loaded: LoadedCheckpoint) -> None:
        if not self._is_restored:
            super().restore(loaded)
        self._is_restored = True


class SharedTraining:
    """A training with several runs, which report in turn. Used in workers.

    There is one state. Each run has its own values of the `OWN_FIELDS`, and so has the training;
    they are put into the state while it is the turn of the run, or while the training trains.

    At the start and in training phases it calls the observing hooks of all runs, each with its
    run's own fields, in the order that they have when the run trains alone. All other hooks belong
    to the training, and see its fields. The first run that needs another phase starts it.

    Between two phases each run takes a turn. Every turn begins with the random state at the end of
    the phase. All turns must end with equal random states, because training continues from there.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext,
        **options: Any,
    ) -> None:
        self.training = Training(
            task, experiment, hooks, context, contents=SharedContents, **options
        )
        self.runs: list[SharedLoop] = []
        """The runs that have not ended."""
        self.phases = 0
        """Number of training phases so far."""
        self.stop = Stop()
        """Whether all runs stop at the end of the last phase."""
        self.files = TrainingFiles(HookedContents.files)
        self.hook_metrics: dict[str, Any] = {}
        """Metrics that hooks of the training added to reports since the last training phase, except
        test metrics."""
        self._first_plan = self.training.plan
        """Plan of the first run alone."""
        self.fields = FieldSwitch(self.training.state)
        self._has_begun = False
        self._turn_start = self._capture_turn_start()
        """Random state, and fields of the training's state, after the last phase or the restored
        checkpoint."""
        self._random_state_after_turn: dict[str, Any] | None = None
        """Random state at the end of the first turn since the last phase."""

    def begin(self) -> None:
        """Begin with the first run."""
        if self._has_begun:
            return
        self._has_begun = True
        self.training.plan = self._joint_plan()
        for run in self.runs:
            run.call(run.evaluation.check_data, run.phases())
        with self.fields.of_training():
            self.training.begin()
        for run in self.runs:
            run.call(run.evaluation.check_phase_names)
        self._turn_start = self._capture_turn_start()

    # A training phase

    def train_phase(self, train: Callable[[], Stop]) -> None:
        """Train a phase for all runs with `train`."""
        if self._random_state_after_turn:
            restore_random_state(self._random_state_after_turn)
        self._random_state_after_turn = None
        self.hook_metrics.clear()

        training = self.training
        training.plan = training.iterations.plan = self._joint_plan()
        recorder = training.recorder
        recorder.other_buffers = [
            run.recorder.recent for run in self.runs if run.recorder is not recorder
        ]
        with self.fields.of_training():
            training.state.metrics = {}
            self.stop = train()
            if not self.stop.is_interruption:
                self.forward_requests()
        recorder.other_buffers = ()
        self.phases += 1
        self._turn_start = self._capture_turn_start()

    def forward_requests(self) -> None:
        """Pass the requests of the training and its hooks to all runs."""
        state = self.training.state
        checkpoints = [reason for reason in state.checkpoint_reasons if reason != REQUESTED_BY_RUN]
        for run in self.runs:
            run.call(run.add_requests, checkpoints, state.stop_reasons, state.pause_reasons)
        state.checkpoint_reasons.clear()

    def _joint_plan(self) -> Plan:
        return self._first_plan.replace_calls(
            {event: self._joint_calls(event) for event in TRAINING_EVENTS}
        )

    def _joint_calls(self, event: str) -> list[Call]:
        """Merge the calls of all runs; each run's calls keep the order that they have when it
        trains alone."""
        calls = list(self._first_plan.calls[event])
        for run in self.runs:
            if run.is_first:
                continue
            position = 0
            for call in run.plan.calls[event]:
                if run.is_own(call):
                    calls.insert(position, call)
                else:
                    names = [other.name for other in calls]
                    position = names.index(call.name)
                position += 1
        return calls

    # A turn of a run

    def _capture_turn_start(self) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self.training.state
        return random_state(), {name: getattr(state, name) for name in CHANGED_BY_EVALUATION}

    def begin_turn(self) -> None:
        """Begin a run's turn: reset the state to where the last phase, or the loaded checkpoint,
        left it."""
        generators, fields = self._turn_start
        restore_random_state(generators)
        for name, value in fields.items():
            setattr(self.training.state, name, value)

    def end_turn(self, name: str) -> None:
        """End a run's turn. Raises RunError if it drew different random numbers from the earlier
        turns."""
        now = random_state()
        self._random_state_after_turn = self._random_state_after_turn or now
        if not _is_equal(now, self._random_state_after_turn):
            raise RunError(
                f"{name} and the trials that share its training drew different random numbers; set"
                " sweep.share_training: false"
            )

    def remove(self, run: "SharedLoop", plan: Plan) -> None:
        """Remove a run that ends. `plan` is the run's plan, without the run's own hooks."""
        self.runs.remove(run)
        if run.is_first:
            self._first_plan = plan


class SharedLoop(Loop):
    """The loop of one of several runs that share a training. Used in workers.

    The run has its own observing hooks, fields of the state, recorder and checkpoints. `hooks` are
    all hooks of its experiment. The first run also provides the training's experiment, context and
    non-observing hooks.
    """

    def __init__(
        self,
        shared: SharedTraining,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext,
    ) -> None:
        training = shared.training
        self.shared = shared
        self.number = len(shared.runs)
        self.is_first = not shared.runs
        self._phases = 0
        """Number of training phases that this run has seen."""
        self._own_hooks = {name: hook for name, hook in hooks.items() if hook.observes}
        super().__init__(
            training.task,
            experiment,
            hooks,
            context,
            training=training,
            plan=self._make_plan(hooks, context),
        )
        fields = {
            **context.state_fields(experiment),
            "info": ChainMap({}, training.state.info),
            "metrics": {},
            "evaluations": {"": training.state.evaluations[""]},
            "checkpoint_reasons": [],
            "stop_reasons": [],
            "pause_reasons": [],
        }
        self._own = OwnFields.choose(fields)
        for event in TRAINING_EVENTS:
            for call in filter(self.is_own, self.plan.calls[event]):
                call.run = self._with_own_fields(call)
        self.saving.training_files = shared.files
        if not self.is_first:
            self.restoring.hooks = self._own_hooks
        shared.runs.append(self)

    @property
    def runs(self) -> "Sequence[SharedLoop]":
        return self.shared.runs

    def _make_plan(self, hooks: Mapping[str, Hook], context: RunContext) -> Plan:
        training = self.shared.training
        plan = training.plan
        if not self.is_first:
            training_hooks = {name: plan.hooks.get(name, hook) for name, hook in hooks.items()}
            plan = make_plan({**training_hooks, **self._own_hooks}, context.world, training.clock)
        calls: dict[str, list[Call]] = {
            "on_report": [
                call if self.is_own(call) else _with_shared_metrics(call, self.shared.hook_metrics)
                for call in plan.calls["on_report"]
            ]
        }
        if not self.is_first:
            for event in EVENTS_FIRED_ONCE:
                calls[event] = list(filter(self.is_own, plan.calls[event]))
        return plan.replace_calls(calls)

    def is_own(self, call: Call) -> bool:
        """Return whether a call belongs to an observing hook of this run."""
        return call.name in self._own_hooks

    def _with_own_fields(self, call: Call) -> Callable[..., None]:
        """Return a function that calls a hook with this run's own fields in the state."""
        call_original = call.run

        def call_hook(state: State, *arguments: Any) -> bool:
            """Call the hook; return whether it requests a checkpoint within a training phase."""
            call_original(state, *arguments)
            if state.phase != "train" or call.event not in WITHIN_ITERATION:
                return False
            if state.stop_reasons or state.pause_reasons:
                raise RunError(
                    f"hook '{call.name}' of {state.name} requests a stop or pause within a"
                    " training phase that other trials share; set sweep.share_training: false"
                )
            return bool(state.checkpoint_reasons)

        def call_for_run(state: State, *arguments: Any) -> None:
            if self.call(call_hook, state, *arguments):
                state.request_checkpoint(REQUESTED_BY_RUN)

        return call_for_run

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function with this run's own fields in the state, and add a note that names this
        run to any error."""
        before = self.shared.fields.switch_to(self._own)
        try:
            return function(*arguments)
        except Exception as error:
            error.add_note(f"{RUN_NOTE_PREFIX}{self.number}")
            raise
        finally:
            self.shared.fields.switch_to(before)

    # What the loop of another run, or the session, calls

    def restore(self, name: str) -> None:
        self.call(super().restore, name)

    def run(self) -> Generator[Report, None, None]:
        # The fields stay in the state while the caller handles a report.
        return produce_within(self._switch_to_own_fields, super().run())

    def _switch_to_own_fields(self) -> AbstractContextManager[None]:
        self.shared.fields.switch_to(self._own)
        return nullcontext()

    def add_requests(
        self, checkpoints: Iterable[str], stops: Iterable[str], pauses: Iterable[str]
    ) -> None:
        """Add requests of the training to this run's."""
        self.state.checkpoint_reasons += checkpoints
        self.state.stop_reasons += stops
        self.state.pause_reasons += pauses

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        self.call(super().add_metrics, metrics)

    def save_if_requested(self) -> None:
        self.call(super().save_if_requested)

    def save_unless_saved(self, reason: str) -> None:
        self.call(super().save_unless_saved, reason)

    def finish_if_written(self) -> None:
        self.call(super().finish_if_written)

    def end_early(self) -> None:
        """End this run; training may continue for the others."""
        self.call(self._end_early)

    def _end_early(self) -> None:
        self.saving.finish_without_peers()
        plan = self.plan
        own_calls = list(filter(self.is_own, plan.calls["on_end"]))
        plan.replace_calls({"on_end": own_calls}).fire("on_end", self.state)

        other_calls = {
            event: list(filterfalse(self.is_own, calls)) for event, calls in plan.calls.items()
        }
        self.plan = plan.replace_calls(other_calls)
        self.shared.remove(self, self.plan)

    # Parts of a round in which the other runs have a share

    def _begin(self) -> None:
        self.shared.begin()
        self.shared.begin_turn()  # may begin with the evaluation that follows the checkpoint

    def is_finished(self) -> bool:
        return self._phases == self.shared.phases and super().is_finished()

    def _train(self) -> Stop:
        """Take part in the next training phase; execute it if no other run has yet."""
        shared = self.shared
        if self._phases == shared.phases:
            shared.train_phase(super()._train)
        self._phases = shared.phases
        shared.begin_turn()
        return shared.stop

    def make_report(self, *, run_ends: bool, is_final: bool) -> Report:
        report = super().make_report(run_ends=run_ends, is_final=is_final)
        if not is_final:
            self.shared.end_turn(self.state.name)
        return report

    def _collect_metrics(self) -> dict[str, Any]:
        metrics = super()._collect_metrics()
        shared = {} if kind_of(self.state.phase) == "test" else self.shared.hook_metrics
        for name, value in shared.items():
            metrics.setdefault(name, value)
        return metrics

    def _save_requested(self) -> None:
        self.shared.forward_requests()
        super()._save_requested()

    def start_save(self) -> None:
        self.training.recorder.sync()  # the first run's recorder holds the training rows
        super().start_save()

    def _close(self) -> None:
        if self.is_first:  # the first run outlives the others
            self.shared.runs.clear()
            self.training.close()


def _with_shared_metrics(call: Call, hook_metrics: dict[str, Any]) -> Call:
    """Return a call that also stores the metrics that it adds to a report, for the other runs."""

    def run(state: State, metrics: dict[str, Any]) -> None:
        before = {*metrics, *hook_metrics}
        call.run(state, metrics)
        if kind_of(state.phase) != "test":
            hook_metrics.update(
                {name: value for name, value in metrics.items() if name not in before}
            )

    return replace(call, run=run)


def _is_equal(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two random states are equal."""
    pairs = zip(tree_leaves(state), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
