"""The hooked loop: the rounds of training and validation, with saving and stopping between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from hooks.hook import Hook
from hooks.metrics.names import phase_of
from hooks.state import State, Weights
from orchestrator.checkpoint.position import Stage
from orchestrator.config.checks.metrics import phase_problems
from orchestrator.config.optim.optimizer import build_optimizers, closure_problems, needs_closure
from orchestrator.config.optim.schedule import Schedule, Timeline
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.source import InitialWeights
from orchestrator.errors import ConfigError, Problem, RunError
from orchestrator.loop.clock.span_clock import clock_for
from orchestrator.loop.data.phases import Data, DataOf, data_from_task
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.model import initial_weights, weight_sources
from orchestrator.loop.model.strategy import forward_pass, shared
from orchestrator.loop.model.torch_settings import as_computed, needless_on_one_rank, torch_set
from orchestrator.loop.report import Report
from orchestrator.loop.rounds import Rounds
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.cursor import TrainingCursor
from orchestrator.loop.state.hooked_contents import HookedContents, WeightsAlone
from orchestrator.loop.step.auto_microbatching import MicrobatchedIterations
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.closure import ClosureIterations
from orchestrator.loop.step.iterations import Iterations
from orchestrator.loop.step.precision import Precision
from orchestrator.loop.step.task_errors import check_type
from orchestrator.loop.step.turns import TurnIterations
from orchestrator.randomness import random_state, seed_all
from orchestrator.task import Task, has_turns, hide_progress, show_progress, without_loss

logger = logging.getLogger("hookyard")


class Loop(Rounds):
    """Trains a task with hooks: `for report in loop.run(): ...`. One in each worker process; knows no Ray.

    Events fire here for the run and its training phases, in `Evaluation` for the other phases, in `Iterations` within
    an iteration, and in `Saving` around a checkpoint. With `resumes` a checkpoint will be restored, so the initial
    weights are not read. `origin` says where these were found when the run was made.
    """

    contents: type[HookedContents] = HookedContents

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext | None = None,
        *,
        data_of: DataOf = data_from_task,
        origin: InitialWeights | None = None,
        resumes: bool = False,
    ) -> None:
        context = context or RunContext()
        super().__init__(task, experiment, hooks, context, clock_for(context.world.device))
        seed_all(experiment.seed)
        self.data = Data(task, experiment, self.world, data_of)
        self.precisions = {
            name: Precision(experiment.precision, self.world.device, experiment.scaler.model_dump())
            for name in experiment.optimizations
        }
        self.timeline = self._timeline()
        self.schedules = self._schedules()
        module = check_type(task.model, task.model(), nn.Module, "the model, a torch.nn.Module")
        module = as_computed(module, experiment, self.world)
        model = shared(module, task, experiment, self.world)
        lines = [] if resumes else self._begin_with_weights(module, origin)
        lines += needless_on_one_rank(experiment) if self.world.world_size == 1 else []
        self.state = state = self._make_state(module, model)
        show_progress(task, state)
        if self.world.is_master:
            for line in lines:
                state.show(line)
        self._make_parts_that_train()
        seed_all(experiment.seed + self.world.rank)

    def _make_parts_that_train(self) -> None:
        task, experiment, state = self.task, self.experiment, self.state
        self.changes = Changes(experiment, task, self.plan, state, self.timeline)
        self.iterations = _kind_of_iterations(task, experiment, state)(
            task, state, self.plan, self.clock, self.precisions, self.recorder, self.world
        )
        train = self.data.train
        samples_per_iteration = experiment.batch_size * self.world.world_size if train.by_index else 0
        cursor = TrainingCursor(state, train.length, samples_per_iteration)
        self._make_parts(cursor, self.contents(state, self.iterations, self.data, self.changes, self.schedules))
        self.evaluation = Evaluation(task, state, self.plan, self.iterations, self.cursor, self.data, self.world)
        self._batches: Iterator[Any] | None = None
        """The epoch's training batches, of which some remain after a validation in steps."""

    def _timeline(self) -> Timeline:
        experiment = self.experiment
        steps_per_epoch = -(-self.data.train.length() // experiment.micro_batches)
        return Timeline.of(self.plan.hooks, experiment.epochs, experiment.steps, steps_per_epoch)

    def _schedules(self) -> dict[str, Schedule | None]:
        """Return the schedule of each optimizer, its length that of the run."""
        return {
            name: Schedule.of(optimization.scheduler, type(self.task), self.timeline, optimization.scheduler_path)
            if optimization.scheduler
            else None
            for name, optimization in self.experiment.optimizations.items()
        }

    def _begin_with_weights(self, module: nn.Module, origin: InitialWeights | None) -> list[str]:
        """Load the experiment's initial weights into the model, on each rank; returns lines for the log."""
        init, folders = self.experiment.init, self.experiment.import_paths
        if init is None:
            return []
        source = self.world.broadcast(
            lambda: weight_sources.find_again(origin) if origin else weight_sources.find(init, folders)
        )
        return initial_weights.load(module, init, weight_sources.read(source), source)

    def _make_state(self, module: nn.Module, model: nn.Module) -> State:
        optimizers = build_optimizers(self.experiment.optimizations, self.task, module)
        schedulers = {
            name: schedule.build(self.task, optimizers[name]) if schedule else None
            for name, schedule in self.schedules.items()
        }
        if problems := [
            problem
            for optimizer in optimizers.values()
            for problem in closure_problems(type(optimizer), self.experiment, self.plan.hooks)
        ]:
            raise ConfigError(problems)
        first = next(iter(optimizers))
        return State(
            **self.context.hook_fields(self.experiment),
            model=model,
            module=module,
            optimizer=optimizers[first],
            scheduler=schedulers[first],
            scaler=self.precisions[first].scaler,
            several={
                name: (optimizers[name], schedulers[name], self.precisions[name].scaler) for name in optimizers if name
            },
            loaders=self.data.loaders,
            fresh_batches=self.data.fresh_batches,
            forward=self.precisions[first].autocasting(forward_pass(self.task, model, module)),
            samples_in=self.task.batch_size,
            max_epochs=self.experiment.epochs,
            max_steps=self.experiment.steps,
            accumulate=self.experiment.micro_batches,
            full_batches=self.data.train.by_index or self.experiment.loader.drop_last,
            clock=self.clock,
        )

    def run(self) -> Generator[Report, None, None]:
        reports = super().run()
        try:
            while True:
                # Not while a report is looked at: another run of this process may be under way meanwhile.
                with torch_set(self.experiment):
                    report = next(reports, None)
                if report is None:
                    return
                yield report
        finally:
            with torch_set(self.experiment):
                reports.close()

    def _begin(self) -> None:
        self._refuse_what_is_not_there()
        super()._begin()
        self.evaluation.refuse_two_of_a_name()

    def _refuse_what_is_not_there(self) -> None:
        """Raise ConfigError if a hook monitors a metric of a phase without data, or data to evaluate has no loss."""
        evaluated = [phase for phase in self.phases() if phase != "train"]
        if evaluated and type(self.task).loss is without_loss:
            message = (
                f"data() of {type(self.task).__name__} gives {', '.join(evaluated)}, and it has no loss(), with which"
                " that is evaluated; write loss(output, batch)"
            )
            raise ConfigError([Problem("task", message)])
        problems = phase_problems({"hooks": self.state.config.get("hooks")}, self.data.loaders)
        if problems:
            raise ConfigError(problems)

    def _close(self) -> None:
        hide_progress(self.task)
        self._batches = None
        self.data.close()

    # Rounds

    def _rounds(self) -> Iterator[Report]:
        if self.cursor.stage is not Stage.TRAIN:
            self.saving.restore_randomness()
        yield from super()._rounds()
        if self.cursor.stage is not Stage.TRAIN and self._report_to_come():
            self.saving.rewind_randomness()
            self.evaluation.run("test")
            yield self._report(last=True)

    def _validate(self) -> None:
        if self._validation_due():
            self.evaluation.run("val")

    def _validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.data.phase_names("val") or every.count == 0:
            return False
        return self.state.finished or bool(self.stopping.reasons) or every.due(self.state)

    def phases(self) -> tuple[str, ...]:
        never = [] if self.experiment.validate_every.count else self.data.phase_names("val")
        return tuple(phase for phase in self.data.phases if phase not in never)

    def _report_to_come(self) -> bool:
        return bool(self.data.phase_names("test")) and not self.stopping.interrupted

    # Training

    def _train(self) -> None:
        state, cursor = self.state, self.cursor
        self.changes.advance()
        cursor.stage = Stage.TRAIN
        state.phase, state.epoch_completed, state.stepped = "train", False, False
        state.phase_length, state.iterations_before = cursor.epoch_length, state.iteration - state.phase_iteration
        if self._batches is None and cursor.is_between_epochs:
            cursor.eval_iterations = {}
        state.module.train()
        state.model.train()
        self.plan.fire("on_phase_start", state)
        if self._batches is None:
            self._batches = self.data.train.begin(state.epoch, cursor.consumed())
        self.saving.restore_randomness()
        iterations, last_step, data = self.iterations.train(self._batches), self._last_step_of_phase(), self.data.train
        runs_dry = data.runs_dry
        # With other ranks or batches there may be nothing left of an epoch that goes on.
        over = state.phase_iteration >= state.phase_length or state.step >= last_step
        while not over:
            if runs_dry and not data.ready():
                self._end_with_the_data()
                break
            next(iterations)
            over = state.phase_iteration >= state.phase_length or state.step >= last_step
            if over or not state.stepped:
                # Between the micro-batches of a step there are gradients, which a checkpoint does not hold.
                continue
            if state.checkpoint_reasons:
                self._save_if_asked()
            if state.iteration >= self.stopping.next_check:
                self._finish_if_written()
                if self._has_to_stop():
                    if self.stopping.interrupted:
                        return self._save()
                    state.request_checkpoint("stop")
                    break
            if self.changes.coming:
                self.changes.advance()
        if not state.finished and not self.stopping.reasons and not data.has_more():
            self._end_with_the_data()
        self._end_train_phase()
        return None

    def _last_step_of_phase(self) -> float:
        """Return the step at which this training phase ends, unless its epoch ends before."""
        state, every = self.state, self.experiment.validate_every
        last = math.inf if state.max_steps is None else float(state.max_steps)
        if not self.data.phase_names("val") or every.unit != "steps" or every.count == 0:
            return last
        return min(last, (state.step // every.count + 1) * every.count)

    def _end_with_the_data(self) -> None:
        """End the run with its training data. Gradients of an incomplete step are dropped."""
        state = self.state
        if state.step == 0:
            raise RunError(
                f"the training data is used up before the first step: the train stream gave {state.iteration} batches,"
                f" and a step takes {state.accumulate} on each rank"
            )
        state.max_steps = state.step
        state.module.zero_grad()
        if state.is_master:
            state.show(f"the training data is used up after {state.step} steps; the run ends there")

    def _end_train_phase(self) -> None:
        state = self.state
        if state.phase_iteration >= state.phase_length:
            self.cursor.complete_epoch()
            self._batches = None
        state.metrics |= self.iterations.reduce("train", self.world)
        self.plan.fire("on_phase_end", state)
        self.cursor.stage, self.saving.after_training = Stage.TRAINED, random_state()
        self._save_if_asked()

    # Saving and stopping

    def _has_to_stop(self) -> bool:
        """Return whether the run ends in the middle of a phase, agreed over ranks."""
        if not self.stopping.is_asked():
            return False
        self.stopping.agree()
        return bool(self.stopping.reasons)


class EvaluationLoop(Loop):
    """Evaluates a restored checkpoint once on the phases of a `kind`, `val` or `test`, and yields one report.

    Initial weights of the experiment replace all weights that the checkpoint was validated with.
    """

    contents = WeightsAlone

    def __init__(
        self, *arguments: Any, kind: str, rewinds: bool = True, origin: InitialWeights | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more, resumes=True)
        self._kind, self._rewinds, self._origin = kind, rewinds, origin

    def _begin(self) -> None:
        super()._begin()
        if self.experiment.init:
            lines = self._begin_with_weights(self.state.module, self._origin)
            self.state.evaluations = {"": Weights()}
            for line in lines if self.world.is_master else ():
                self.state.show(line)

    def _rounds(self) -> Iterator[Report]:
        if not self.data.phase_names(self._kind):
            raise RunError(
                f"data() of {type(self.task).__name__} gives {', '.join(self.data.phases)}, and no {self._kind} to"
                " evaluate"
            )
        self.state.metrics, self.cursor.eval_iterations, self.cursor.stage = {}, {}, Stage.VALIDATED
        if self._rewinds:
            self.saving.rewind_randomness()
        self.evaluation.run(self._kind)
        report = self._report(last=True)
        # What a hook had of the training since its last report came with the checkpoint.
        yield replace(
            report,
            metrics={name: value for name, value in report.metrics.items() if phase_of(name) in ("", self._kind)},
            final=True,
        )


def _kind_of_iterations(task: Task, experiment: Experiment, state: State) -> type[Iterations]:
    if has_turns(type(task)):
        return TurnIterations
    if state.optimizer is not None and needs_closure(type(state.optimizer)):
        return ClosureIterations
    return MicrobatchedIterations if experiment.accumulate == "auto" else Iterations
