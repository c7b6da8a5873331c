"""Rounds: training, validation and a report, with saving and stopping between them. Worker process."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from hooks.hook import Hook
from hooks.plan import Plan
from hooks.state import State
from orchestrator.checkpoint.position import Stage
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import WorkersDisagree
from orchestrator.loop.clock.hook_costs import Ledger
from orchestrator.loop.clock.span_clock import Clock
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.state.saving import Contents, Saving
from orchestrator.loop.stopping import INTERRUPTED, Stopping
from orchestrator.loop.world import World
from orchestrator.task import Task

logger = logging.getLogger("hookyard")

DEVICE_S = 2.0
"""Seconds that a failing rank waits for its device, before the others hear of the failure."""


class Rounds(ABC):
    """Trains round by round: `for report in loop.run(): ...`. One in each worker process; knows no Ray.

    All ranks yield the same number of reports at the same places.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        context: RunContext,
        *,
        plan: Plan,
        clock: Clock,
        state: State,
        cursor: RunCursor,
        contents: Contents,
    ) -> None:
        self.task, self.experiment, self.world, self.recorder = task, experiment, context.world, context.recorder
        self.plan, self.clock, self.state, self.cursor = plan, clock, state, cursor
        self.stopping = Stopping(state, self.world, clock, context.stop_asked)
        self.ledger = Ledger(self.recorder, plan, state, cursor)
        self.saving = Saving(
            context.store, state, plan, contents, cursor, self.world, self.ledger, context.send_artifacts
        )
        self.world.when_aborted.append(self.recorder.lose_device)

    def restore(self, name: str) -> None:
        """Restore a stored checkpoint and fire `on_load`; call it on every rank, before `run`."""
        try:
            self.saving.restore(name)
        except BaseException as error:
            self._handle(error)
            raise

    def save(self) -> str | None:
        """Write a checkpoint between two reports and return its path; call it on every rank."""
        self.save_now()
        self.saving.finish()
        return self.saving.last_path

    def run(self) -> Generator[Report, None, None]:
        """Train to the end and yield a report after each round. An error goes to `on_exception` and is raised."""
        try:
            self._begin()
            yield from self._rounds()
            self.saving.finish()
            self._end()
        except GeneratorExit:  # the driver goes no further; other ranks may have failed
            try:
                self.saving.finish_alone()
            finally:
                self._end()
            raise
        except BaseException as error:
            self._handle(error)
            self._close()
            self._close_files_quietly()
            raise

    def _handle(self, error: BaseException) -> None:
        # Wait for the device for the last time, and briefly: it may have failed, or wait for a rank that is gone.
        for leave in (partial(self.recorder.settle, DEVICE_S), self.plan.leave_device, self.world.abort):
            try:
                leave()
            except Exception as later:  # the first failure is the one to report
                logger.warning("rank %d could not leave its device: %s", self.world.rank, later)
        self.recorder.lose_device()
        self.plan.fire("on_exception", self.state, error)

    def _begin(self) -> None:
        self.plan.fire("on_start", self.state)

    def _end(self) -> None:
        self.plan.fire("on_end", self.state)
        self._close()
        self.saving.close()
        self.ledger.close()

    def _close_files_quietly(self) -> None:
        for files, close in (
            ("a checkpoint", self.saving.abandon),
            ("earlier checkpoints", self.saving.close),
            ("rows", self.ledger.close),
        ):
            try:
                close()
            except Exception as error:  # the first failure is the one to report
                logger.warning("%s of rank %d could not be finished: %s", files, self.world.rank, error)
        if rows := self.recorder.rows_left_out:
            logger.warning(
                "the last %d rows of rank %d lack values that its device still computed", rows, self.world.rank
            )

    def _rounds(self) -> Iterator[Report]:
        """Yield the report of each round, from the restored checkpoint's stage on."""
        cursor = self.cursor
        while True:
            if cursor.stage in (Stage.REPORTED, Stage.TRAIN):
                if self._finished():
                    return
                self._train()
                if cursor.stage is Stage.TRAIN:
                    if self.stopping.reasons:
                        yield self._report()
                    return
            if cursor.stage is Stage.TRAINED:
                self._validate()
                cursor.stage = Stage.VALIDATED
                self.save_if_asked()
            self._agree_on_stop()
            yield self._report()
            if self.stopping.reasons:
                return

    def _finished(self) -> bool:
        return self.cursor.stage is not Stage.TRAIN and self.state.finished

    def _report(self, *, last: bool = False) -> Report:
        state, cursor, stopping = self.state, self.cursor, self.stopping
        if stopping.reasons or self._finished():
            self.saving.finish()
        self.saving.finish_if_written()
        metrics = self._metrics()
        self.plan.fire("on_report", state, metrics)
        self.ledger.flush()
        cut_short = cursor.stage is Stage.TRAIN
        if not cut_short:
            cursor.stage = Stage.REPORTED
        state.metrics = {}
        ends = bool(stopping.reasons) or self._finished()
        final = cut_short or (ends and (last or not self._report_to_come()))
        return Report(
            metrics, self.saving.last_path, stopping.reasons, stopping.interrupted, final, cut_short, self.phases()
        )

    def _metrics(self) -> dict[str, Any]:
        """Return the metrics of a report, to which hooks add theirs."""
        state = self.state
        return {
            "epoch": self.cursor.epoch_label,
            "step": state.step,
            "iteration": state.iteration,
            "samples": state.samples,
            **state.metrics,
        }

    def save_if_asked(self) -> None:
        """Save a checkpoint if a hook has requested one; call it where all ranks do."""
        if not self.state.checkpoint_reasons:
            return
        self.state.checkpoint_reasons.clear()
        began = perf_counter()
        self.save_now()
        self.clock.checkpoint_s += perf_counter() - began

    def save_now(self) -> None:
        """Save a checkpoint, or begin to write it in the background; call it on every rank."""
        self.saving.save(self.state.milestone)

    def finish_if_written(self) -> None:
        """Put a checkpoint that was written in the background in its place; call it where all ranks do."""
        if not self.saving.is_writing:
            return
        began = perf_counter()
        if self.saving.finish_if_written():
            self.clock.checkpoint_s += perf_counter() - began
        elif self.world.world_size > 1:
            self.clock.waiting_s += perf_counter() - began

    def _agree_on_stop(self) -> None:
        """Agree over ranks whether the run ends with this round; an interrupted run is saved."""
        self.stopping.agree()
        if self.stopping.interrupted and self.saving.last_step != self.state.step:
            self.state.request_checkpoint(INTERRUPTED)
            self.save_if_asked()

    # What differs

    @abstractmethod
    def phases(self) -> tuple[str, ...]:
        """Return all phases of the run."""

    @abstractmethod
    def _train(self) -> None:
        """Train to the end of a round, or to where the run stops within it."""

    @abstractmethod
    def _validate(self) -> None:
        """Validate if it is due, and put the values into `state.metrics`."""

    def _report_to_come(self) -> bool:
        """Return whether there is another report after training."""
        return False

    @abstractmethod
    def _close(self) -> None:
        """Release what trained."""


def make_plan(hooks: Mapping[str, Hook], world: World, clock: Clock) -> Plan:
    """Return the plan of this rank; collective.

    Raises WorkersDisagree if ranks run different collective hooks, as they would hang.
    """
    plan = Plan(hooks, world.rank, world.local_rank, clock.device_mark)
    signatures = world.gather(plan.collective_signature())
    for rank, signature in enumerate(signatures):
        if signature != signatures[0]:
            raise WorkersDisagree(
                f"rank {rank} runs the collective hooks {signature}, rank 0 runs {signatures[0]}; they must be the"
                " same, in the same order, or the ranks would wait for each other forever"
            )
    return plan
