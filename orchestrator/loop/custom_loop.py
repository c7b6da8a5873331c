"""The loop of a task with a loop of its own: rounds, rows, reports and checkpoints. Worker process."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping
from numbers import Real
from time import perf_counter
from typing import Any

from torch import Tensor

from hooks.hook import Hook
from hooks.metrics.names import PHASES, phase_of
from hooks.state import State
from orchestrator.checkpoint.position import Stage
from orchestrator.config.checks.custom_training import train_parameters
from orchestrator.config.python.user_code import source_location
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import RunError, WorkersDisagree
from orchestrator.loop.clock.span_clock import Clock
from orchestrator.loop.rounds import Rounds
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.custom_contents import KeptParts
from orchestrator.loop.step.iterations import iteration_columns
from orchestrator.loop.step.task_errors import COLUMNS, check_type, describe
from orchestrator.randomness import seed_all
from orchestrator.task import Task, hide_progress, show_progress
from orchestrator.training_session import Part, TrainingSession

_OF_THE_ROW = frozenset(COLUMNS)
"""Columns that every row has."""


class CustomLoop(Rounds):
    """Runs the task's own `train`. A round is an epoch, and ends with a report.

    It fires the events of the run, of a phase and of a checkpoint, and `on_step` with each row.
    """

    def __init__(self, task: Task, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext) -> None:
        super().__init__(task, experiment, hooks, context, Clock())
        seed_all(experiment.seed)
        self.state = State(
            **context.hook_fields(experiment),
            max_epochs=experiment.epochs,
            max_steps=experiment.steps,
            recent=self.recorder.recent,
        )
        show_progress(task, self.state)
        self.parts = KeptParts(self.world)
        self._make_parts(_Unmeasured(), self.parts)
        self._arguments = {name: self.state.config[name] for name in train_parameters(type(task))}
        self._training: Generator[Any, None, None] | None = None
        self._ended, self._checked_at = 0.0, perf_counter()
        self._calls_to_check, self._has_to_stop, self._has_warned, self._is_begun = 0, False, False, False

    def phases(self) -> tuple[str, ...]:
        return PHASES  # which of them it has, only its reports tell

    def _save(self) -> None:
        if self.parts.are_named:
            return super()._save()
        if self.saving.last_step == self.state.step:
            return None
        raise RunError(
            "a checkpoint is requested, but train() has not named its parts: call"
            f" session.restore(){source_location(self.task.train)}"
        )

    # Rounds

    def _train(self) -> None:
        state, cursor = self.state, self.cursor
        cursor.stage, self._is_begun = Stage.TRAIN, False
        if self._training is None:
            training: Any = self.task.train(_CustomSession(self), **self._arguments)
            self._training = check_type(self.task.train, training, Generator, "a generator of reports")
        else:
            self._begin_round()
        report = next(self._training, None)
        self._begin_round()
        metrics = self._mean_over_ranks(report)
        if metrics is None and not self._ends_with_steps():
            return
        if state.phase_iteration == 0:
            self.record({}, 1)
        state.metrics = metrics or {}
        cursor.complete_epoch()
        self.plan.fire("on_phase_end", state)
        cursor.stage = Stage.TRAINED
        self._save_if_asked()

    def _ends_with_steps(self) -> bool:
        """Return whether the generator made steps after its last `yield`, which are a last round; collective.

        Raises RunError if it has trained nothing.
        """
        state = self.state
        if self.stopping.is_asked():
            self.stopping.agree()
        steps, unreported = self.world.maximum([float(state.step), float(state.phase_iteration)])
        if not steps and not self.stopping.reasons:
            raise RunError(
                f"train() ended without a report or a row, so nothing was trained{source_location(self.task.train)}"
            )
        if not unreported or self.stopping.interrupted:
            return False
        if self.stopping.reasons:
            state.request_checkpoint("stop")
        elif not state.finished:
            self.parts.is_over = True
            state.max_steps = state.step
        return True

    def restore(self, name: str) -> None:
        super().restore(name)
        if self.parts.is_over:
            self.state.max_steps = self.state.step

    def _begin_round(self) -> None:
        """Begin a round, once. The task builds its model before."""
        state = self.state
        if self._is_begun:
            return
        if self.parts.waiting is not None:
            raise RunError(
                f"this run continues from checkpoint '{self.parts.waiting}', but train() has not restored it; call"
                f" session.restore() with its parts before training{source_location(self.task.train)}"
            )
        self._is_begun = True
        state.phase, state.epoch_completed, state.stepped = "train", False, False
        state.iterations_before = state.iteration - state.phase_iteration
        self.plan.fire("on_phase_start", state)
        self.recorder.begin({"phase": "train", "epoch": state.epoch}, iteration_columns((), self.clock.columns))
        self._ended = self.clock.restart()

    def _mean_over_ranks(self, report: Any) -> dict[str, float] | None:
        """Return the means over ranks of a report, or None if training is over; collective.

        Raises WorkersDisagree if ranks differ.
        """
        ranks = self.world.gather(None if report is None else self._checked(report))
        names = [None if metrics is None else sorted(metrics) for metrics in ranks]
        rank = next((rank for rank, metrics in enumerate(names) if metrics != names[0]), None)
        if rank is not None:
            pair = names[0], names[rank]
            first, other = ("has ended" if metrics is None else f"yields {', '.join(metrics)}" for metrics in pair)
            raise WorkersDisagree(
                f"rank 0 {first}, rank {rank} {other}: train() yields the same metrics on all ranks, as"
                f" often{source_location(self.task.train)}"
            )
        if names[0] is None:
            return None
        return {name: _mean([metrics[name] for metrics in ranks]) for name in ranks[0]}

    def _checked(self, report: Any) -> dict[str, float]:
        """Return a report as plain numbers; raises RunError if it is not one."""
        where = source_location(self.task.train)
        if not isinstance(report, Mapping) or not report:
            raise RunError(f"train() yields {describe(report)}; expected a mapping of metrics to numbers{where}")
        for name, value in report.items():
            if not isinstance(name, str) or not phase_of(name) or not name.partition("/")[2]:
                raise RunError(
                    f"train() yields a metric {name!r}; metrics begin with train/, val/ or test/: write"
                    f" 'train/{name}'{where}"
                )
            if not (value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real)):
                raise RunError(f"train() yields {describe(value)} for '{name}'; expected a number{where}")
        return {name: float(value) for name, value in report.items()}

    def _validate(self) -> None:
        # The task has validated: hooks get the events.
        state = self.state
        for phase in dict.fromkeys(phase_of(name) for name in state.metrics if phase_of(name) != "train"):
            state.phase, state.stepped = phase, False
            self.plan.fire("on_phase_start", state)
            self.plan.fire("on_phase_end", state)

    def _save_if_asked(self) -> None:
        if self.parts.are_named or not self.state.checkpoint_reasons:
            return super()._save_if_asked()
        self.state.checkpoint_reasons.clear()
        if self.parts.waiting is None and not self._has_warned and self.world.is_master:
            self.state.show(
                "there are no checkpoints, as train() names no parts for them (session.restore()); a resume starts from"
                " the beginning"
            )
        self._has_warned = True
        return None

    def _agree_on_stop(self) -> None:
        if self.parts.are_named:
            return super()._agree_on_stop()
        return self.stopping.agree()

    def _close(self) -> None:
        if self._training is not None:
            self._training.close()
        hide_progress(self.task)

    # For the session

    def take_parts(self, parts: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Take the parts of checkpoints, and restore them; returns whether there was a checkpoint."""
        are_restored = self.parts.name(parts, per_rank)
        self._begin_round()
        if self.world.rank:
            # All ranks have built the same. From here on each draws its own numbers.
            seed_all(self.experiment.seed + self.world.rank)
        self.saving.restore_randomness()
        return are_restored

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None:
        """End an iteration with a row, and fire `on_step`."""
        state = self.state
        self._begin_round()
        taken = _OF_THE_ROW.intersection(columns)
        if taken:
            raise RunError(
                f"session.record() got {', '.join(sorted(taken))}, a column that every row already has; rename it"
            )
        if type(batch_size) is not int or batch_size < 0:
            raise RunError(
                f"session.record() got batch_size={batch_size!r}; expected the number of samples, as an int from 0"
            )
        state.batch_size, state.stepped = batch_size, True
        state.iteration += 1
        state.phase_iteration += 1
        state.step += 1
        state.samples += batch_size
        state.world_samples += batch_size * state.world_size
        state.record(**columns)
        self.plan.fire("on_step", state)
        times = self.clock.close(state.row, self._ended, ())
        self._ended = times[-1]
        self.recorder.append(state.row, (state.iteration, state.step, state.samples, state.batch_size, *times))
        state.row = {}

    def save_here(self) -> None:
        """Write a checkpoint in the middle of a round, or between two rounds if this one has no row yet."""
        began = perf_counter()
        self.cursor.stage = Stage.TRAIN if self.state.phase_iteration else Stage.REPORTED
        self._save()
        self.cursor.stage = Stage.TRAIN
        self._ended += perf_counter() - began  # it is no part of an iteration

    def _finish_if_written(self) -> None:
        began = perf_counter()
        super()._finish_if_written()
        self._ended += perf_counter() - began

    def stop_asked(self) -> bool:
        """Return whether training has to end, agreed over ranks, which communicate in some of these calls."""
        state, now = self.state, perf_counter()
        if state.max_steps is not None and state.step >= state.max_steps:
            return True
        self.clock.iteration_s, self._checked_at = now - self._checked_at, now
        self._calls_to_check -= 1
        if self._calls_to_check <= 0:
            self._finish_if_written()
            self._has_to_stop = self.stopping.is_asked()
            self._calls_to_check = self.stopping.next_check - state.iteration
        return self._has_to_stop


class _Unmeasured:
    """Training data of unknown length."""

    by_index = False

    def length(self, offset: int = 0) -> int:
        return 0


class _CustomSession(TrainingSession):
    def __init__(self, loop: CustomLoop) -> None:
        state = loop.state
        super().__init__(state.rank, state.world_size, state.local_rank, state.device, state.config, state.artifacts)
        self._loop = loop

    @property
    def epoch(self) -> int:
        return self._loop.state.epoch

    @property
    def step(self) -> int:
        return self._loop.state.step

    @property
    def stop_asked(self) -> bool:
        return self._loop.stop_asked()

    def restore(self, *, per_rank: Mapping[str, Part] | None = None, **parts: Part) -> bool:
        return self._loop.take_parts(parts, per_rank or {})

    def record(self, *, batch_size: int = 1, **columns: Any) -> None:
        self._loop.record(columns, batch_size)

    def save(self) -> None:
        self._loop.save_here()


def _mean(values: Collection[float]) -> float:
    first = next(iter(values))
    return first if all(value == first for value in values) else math.fsum(values) / len(values)
