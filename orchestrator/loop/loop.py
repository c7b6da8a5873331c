"""The hooked loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from hooks.hook import Hook
from hooks.plan import Plan
from hooks.state import Display, State
from orchestrator.checkpoint.position import Position, Stage
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.components import build_optimizer, build_scheduler
from orchestrator.config.experiment import Experiment
from orchestrator.errors import WorkersDisagree
from orchestrator.loop.changes import Changes
from orchestrator.loop.clock import clock_for
from orchestrator.loop.data import Data, batches_of
from orchestrator.loop.iterations import Iterations
from orchestrator.loop.precision import Precision
from orchestrator.loop.randomness import restore_random_state, seed_all
from orchestrator.loop.saving import Saving
from orchestrator.loop.strategy import compile_in_place, is_sharded, replicated, sharded
from orchestrator.loop.world import Agreement, World
from orchestrator.stats.recorder import Recorder
from orchestrator.task import Task

logger = logging.getLogger("hookyard")



@dataclass(frozen=True)
class Report:
    """What the loop hands up at the end of each round of training and validation, on every rank at the same places."""

    metrics: dict[str, Any]
    """Counters and the values of the phases, the same on all ranks but for what hooks added."""
    checkpoint: str | None = None
    """The newest stored checkpoint."""
    stopped: tuple[str, ...] = field(default=())
    """Why the run ends here, where somebody asked it to."""
    interrupted: bool = False
    """True when the run was asked from outside to stop and can be resumed."""
    final: bool = False
    """True for the last report of the run."""
    cut_short: bool = False
    """True where the run ends in the middle of training: the metrics hold no values of a whole phase."""


class Loop:
    """Trains a task with hooks: `for report in loop.run(): ...`. One in each worker process; knows no Ray.

    Hooks are fired here for the run and its phases, in `Iterations` within an iteration and in `Saving` around a
    checkpoint, and from nowhere else. All ranks yield the same number of reports at the same places.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        *,
        world: World | None = None,
        recorder: Recorder | None = None,
        store: CheckpointStore | None = None,
        artifacts: Path = Path("."),
        display: Display | None = None,
        config: Mapping[str, Any] | None = None,
        name: str = "",
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.experiment = task, experiment
        self.world = world or World()
        self.recorder = recorder or Recorder()
        self.plan = Plan(hooks, self.world.rank, self.world.local_rank)
        self._check_plans_agree()
        seed_all(experiment.seed)
        self.data = Data(task, experiment, self.world)
        self.precision = Precision(experiment.precision, self.world.device)
        self.clock = clock_for(self.world.device)
        self.stage = Stage.REPORTED
        self.eval_iterations = 0
        self._stop_asked = stop_asked
        self._agreement = Agreement(self.world, self.clock)
        self._iterator: Iterator[Any] | None = None
        self._stopped: tuple[str, ...] = ()
        self._interrupted = False
        self._epoch_length = self.data.epoch_length()
        self.state = self._make_state(artifacts, display, config or {}, name or experiment.name, store)
        self.iterations = Iterations(task, self.state, self.plan, self.clock, self.precision, self.recorder)
        self.saving = Saving(self, store)
        self.changes = Changes(experiment, self.plan, self.state)
        seed_all(experiment.seed + self.world.rank)

    def _check_plans_agree(self) -> None:
        signatures = self.world.gather(self.plan.collective_signature())
        for rank, signature in enumerate(signatures):
            if signature != signatures[0]:
                raise WorkersDisagree(
                    f"rank {rank} runs the collective hooks {signature}, rank 0 runs {signatures[0]}; they must be the same, "
                    "in the same order, or the ranks would wait for each other for ever"
                )

    def _make_state(
        self, artifacts: Path, display: Display | None, config: Mapping[str, Any], name: str, store: CheckpointStore | None
    ) -> State:
        module = self.task.model()
        model = self._shared(module)
        optimizer = build_optimizer(self.experiment, self.task, module)
        return State(
            rank=self.world.rank,
            world_size=self.world.world_size,
            local_rank=self.world.local_rank,
            node=self.world.node,
            device=self.world.device,
            model=model,
            module=module,
            optimizer=optimizer,
            scheduler=build_scheduler(self.experiment, self.task, optimizer),
            scaler=self.precision.scaler,
            loaders=self.data.loaders,
            fresh_batches=self.data.fresh_batches,
            forward=self._forward,
            samples_in=self.task.batch_size,
            max_epochs=self.experiment.epochs,
            max_steps=self.experiment.steps,
            accumulate=self.experiment.accumulate,
            artifacts=artifacts,
            config=config,
            name=name,
            checkpoints=store,
            clock=self.clock,
            display=display,
        )

    def _shared(self, module: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device, as the training step calls it: shared with the other ranks."""
        experiment, world = self.experiment, self.world
        if experiment.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if experiment.compile:
            compile_in_place(module)
        if world.world_size == 1 or not any(p.requires_grad for p in module.parameters()):
            return module.to(world.device)
        if experiment.workers.strategy == "fsdp":
            return sharded(module, self.task.fsdp_units(module), world, experiment.precision)
        return replicated(module.to(world.device), world)

    def _forward(self, model: torch.nn.Module, batch: Any) -> Any:
        with self.precision.autocast():
            return self.task.forward(model, batch)

    # The run

    def restore(self, name: str) -> None:
        """Puts a stored checkpoint back; call it on every rank, before `run`. Fires `on_load`."""
        try:
            self.saving.restore(name)
        except BaseException as error:
            self.plan.fire("on_exception", self.state, error)
            raise

    def save(self) -> str | None:
        """Writes a checkpoint between two reports; call it on every rank. Returns its path."""
        return self.saving.save(self._checkpoint_name())

    def run(self) -> Generator[Report, None, None]:
        """Trains to the end, yielding a report after each round; whatever fails is shown to `on_exception` and raised."""
        try:
            self.plan.fire("on_start", self.state)
            yield from self._rounds()
            self._end()
        except GeneratorExit:
            self._end()
            raise
        except BaseException as error:
            self.plan.fire("on_exception", self.state, error)
            self._close_data()
            self._flush_quietly()
            raise

    def _end(self) -> None:
        self.plan.fire("on_end", self.state)
        self._close_data()
        self.record_costs()
        self.recorder.close()

    def _close_data(self) -> None:
        self._iterator = None
        self.data.close()

    def record_costs(self) -> None:
        """Hands what hooks and saving cost since the last time to the recorder."""
        costs = self.plan.drain_costs() + self.saving.drain_costs()
        place = {"epoch": self._epoch_label(), "iteration": self.state.iteration, "step": self.state.step}
        self.recorder.append_costs([{**place, **cost} for cost in costs])

    def _flush_quietly(self) -> None:
        try:
            self.record_costs()
            self.recorder.close()
        except Exception as error:  # the failure that led here is the one to be told
            logger.warning("rows of rank %d could not be flushed: %s", self.world.rank, error)

    def _rounds(self) -> Iterator[Report]:
        self._restore_randomness_unless_mid_phase()
        while True:
            if self.stage in (Stage.REPORTED, Stage.TRAIN):
                if self._finished():
                    break
                self._train()
                if self.stage is Stage.TRAIN:
                    yield self._report()
                    return
            if self.stage is Stage.TRAINED:
                if self._validation_due():
                    self._evaluate("val")
                self.stage = Stage.VALIDATED
                self._save_if_asked()
            self._agree_on_stop()
            yield self._report()
            if self._stopped:
                break
        if self._test_due():
            self._evaluate("test")
            yield self._report(tested=True)

    def _test_due(self) -> bool:
        return "test" in self.data.loaders and not self._interrupted

    def _finished(self) -> bool:
        state = self.state
        if self.stage is Stage.TRAIN:
            return False
        if state.max_steps is not None:
            return state.step >= state.max_steps
        return state.max_epochs is not None and state.epoch >= state.max_epochs

    def _report(self, *, tested: bool = False) -> Report:
        state = self.state
        metrics: dict[str, Any] = {
            "epoch": self._epoch_label(),
            "step": state.step,
            "iteration": state.iteration,
            "samples": state.samples,
            **state.metrics,
        }
        self.plan.fire("on_report", state, metrics)
        self.record_costs()
        self.recorder.sync()
        cut_short = self.stage is Stage.TRAIN
        if not cut_short:
            self.stage = Stage.REPORTED
        state.metrics = {}
        ends = bool(self._stopped) or self._finished()
        final = cut_short or (ends and (tested or not self._test_due()))
        return Report(metrics, self.saving.last_path, self._stopped, self._interrupted, final, cut_short)

    def _epoch_label(self) -> int:
        """The epoch that rows and reports belong to, from 0: the one under way, or the last one after its end."""
        state = self.state
        return state.epoch - 1 if state.phase_iteration == 0 and state.epoch > 0 else state.epoch

    # Training

    def _train(self) -> None:
        state = self.state
        self.changes.advance()
        resumed = self.stage is Stage.TRAIN and self.saving.random_state is not None
        self.stage = Stage.TRAIN
        state.phase, state.epoch_completed, state.stepped = "train", False, False
        state.phase_length = self._epoch_length
        if self._iterator is None and state.phase_iteration == 0:
            self.eval_iterations = 0
        state.module.train()
        state.model.train()
        self.plan.fire("on_phase_start", state)
        if self._iterator is None:
            self._iterator = self.data.train_iterator(state.epoch, self.consumed())
        if resumed:
            self._restore_randomness()
        iterations, last_step = self.iterations.train(self._iterator), self._last_step_of_phase()
        over = state.step >= last_step
        while not over:
            next(iterations)
            over = state.phase_iteration >= state.phase_length or state.step >= last_step
            if over or not state.stepped:
                # Between the micro-batches of a step there are gradients, which a checkpoint does not hold.
                continue
            if state.checkpoint_reasons:
                self._save_if_asked()
            if state.iteration >= self._agreement.next and self._stop_in_phase():
                return
            if self.changes.coming:
                self.changes.advance()
        self._end_train_phase()

    def consumed(self) -> int:
        """Samples of the present epoch that all ranks together have consumed."""
        return self.state.phase_iteration * self.experiment.batch_size * self.world.world_size + self.saving.offset_shift

    def continue_epoch_with_other_ranks(self, position: Position) -> None:
        """Goes on in an epoch that another number of ranks began: what was consumed is a prefix of the epoch's order."""
        if position.phase_iteration == 0:
            return
        per_iteration = self.experiment.batch_size * self.world.world_size
        self.state.phase_iteration = position.offset // per_iteration
        self.saving.offset_shift = position.offset % per_iteration
        self.data.sampler.offset = position.offset
        self._epoch_length = self.state.phase_iteration + len(self.data.loaders["train"])

    def _last_step_of_phase(self) -> float:
        """The step at which the training phase under way ends, unless its epoch is over before."""
        state, every = self.state, self.experiment.validate_every
        last = math.inf if state.max_steps is None else float(state.max_steps)
        if "val" not in self.data.loaders or every.unit != "steps" or every.count == 0:
            return last
        return min(last, (state.step // every.count + 1) * every.count)

    def _end_train_phase(self) -> None:
        state = self.state
        if state.phase_iteration >= state.phase_length:
            state.epoch += 1
            state.epoch_completed = True
            state.phase_iteration = 0
            self.saving.offset_shift = 0
            self._epoch_length = self.data.epoch_length()
            self._iterator = None
        state.metrics |= self.iterations.reduce("train", self.world)
        self.plan.fire("on_phase_end", state)
        self.stage = Stage.TRAINED
        self._save_if_asked()

    def _save_if_asked(self) -> None:
        if not self.state.checkpoint_reasons:
            return
        self.state.checkpoint_reasons.clear()
        began = perf_counter()
        self.saving.save(self._checkpoint_name())
        self.clock.checkpoint_s += perf_counter() - began

    def _checkpoint_name(self) -> str:
        state = self.state
        if state.phase_iteration == 0 and state.epoch > 0:
            return f"epoch-{state.epoch:04d}"
        return f"step-{state.step:08d}"

    def _stop_in_phase(self) -> bool:
        """Whether the run ends here, in the middle of a phase, agreed over ranks; saves what is needed to go on."""
        state = self.state
        asked = bool(state.stop_reasons or state.pause_reasons) or self._stop_asked()
        if not self._agreement.reached(state.iteration, asked):
            return False
        self._agree_on_stop()
        if self._stopped:
            self.saving.save(self._checkpoint_name())
        return bool(self._stopped)

    def _agree_on_stop(self) -> None:
        """Joins the reasons of all ranks; collective."""
        mine = (self.state.stop_reasons, self.state.pause_reasons + ["interrupted"] * self._stop_asked())
        stops, pauses = zip(*self.world.gather(mine), strict=True)
        self._interrupted = any(pauses)
        self._stopped = tuple(dict.fromkeys(reason for reasons in (*stops, *pauses) for reason in reasons))
        if self._interrupted and self.stage is not Stage.TRAIN and self.saving.last_step != self.state.step:
            self.saving.save(self._checkpoint_name())

    # Evaluation

    def _validation_due(self) -> bool:
        if "val" not in self.data.loaders:
            return False
        every, state = self.experiment.validate_every, self.state
        if every.count == 0:
            return False
        last = state.step == state.max_steps or (state.max_epochs is not None and state.epoch >= state.max_epochs)
        return last or every.due(state)

    def _evaluate(self, phase: str) -> None:
        """A val or test phase: once with each set of weights that hooks registered in `state.evaluations`."""
        state = self.state
        loader = self.data.loaders[phase]
        state.phase, state.stepped = phase, False
        begun, trained = self.eval_iterations if phase == "val" else 0, state.phase_iteration
        epoch = self._epoch_label()
        state.phase_iteration, state.phase_length = 0, len(loader) * len(state.evaluations)
        self.plan.fire("on_phase_start", state)
        for label, weights in state.evaluations.items():
            meters = {name: meter.to(state.device) for name, meter in self.task.meters().items()}
            with weights(), torch.no_grad():
                state.module.eval()
                iterations = self.iterations.evaluate(batches_of(loader), meters, begun, epoch)
                for _ in range(len(loader)):
                    next(iterations)
                self._take_part(phase)
            state.module.train()
            state.metrics |= self.iterations.reduce(f"{phase}/{label}" if label else phase, self.world, meters)
        if phase == "val":
            self.eval_iterations = begun + state.phase_iteration
        self.plan.fire("on_phase_end", state)
        state.phase_iteration, state.phase_length = trained, self._epoch_length

    def _take_part(self, phase: str) -> None:
        """Where the model is sharded, calls it as often as the rank with most batches does, which needs everybody's shards."""
        if not is_sharded(self.state.module):
            return
        missing = int(max(self.world.gather(len(self.data.loaders[phase])))) - len(self.data.loaders[phase])
        for _ in range(missing):
            self._forward(self.state.module, self.data.first_sample(phase))

    def _restore_randomness_unless_mid_phase(self) -> None:
        if self.stage is not Stage.TRAIN:
            self._restore_randomness()

    def _restore_randomness(self) -> None:
        if self.saving.random_state is not None:
            restore_random_state(self.saving.random_state)
            self.saving.random_state = None
