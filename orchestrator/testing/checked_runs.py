"""Small runs with the hook under test: uninterrupted, or stopped and resumed at every report."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from hooks.errors import HookError, describe_error
from hooks.hook import Hook, Ranks
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.optim.task_factories import has_own_method
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.randomness import random_state
from orchestrator.storage import Storage
from orchestrator.task import Task, has_turns
from orchestrator.testing.check_failure import CheckFailure
from orchestrator.testing.differences import copy_tree, find_difference
from orchestrator.testing.small_loop import KeepingRecorder, Screen, SmallLoop, make_small_loop
from orchestrator.testing.watching import watch_calls

NAME = "checked"
"""Name of the hook in its loop."""
TRAINING = "training"
"""Part of a report: step, random generators, parameters, buffers and optimizer."""
GIVE_FIELDS = "give fields= and task= with which it can run"


@dataclass(frozen=True)
class Situation:
    """A loop to check a hook in: one or two epochs of a few steps, with reports in between."""

    ranks: int = 1
    strategy: str = "ddp"
    accumulate: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of an experiment that make this loop."""
        is_sharded = self.strategy == "fsdp"
        return {
            "epochs": 1 if is_sharded else 2,
            "accumulate": self.accumulate,
            "validate_every": "2 steps" if is_sharded or self.accumulate > 1 else "4 steps",
            "workers": {"count": self.ranks, "strategy": self.strategy},
        }

    def __str__(self) -> str:
        ranks = f"{self.ranks} ranks ({self.strategy})" if self.ranks > 1 else "1 rank"
        batches = f", {self.accumulate} micro-batches per step" if self.accumulate > 1 else ""
        return f"{ranks}{batches}, on the CPU"


@dataclass
class CheckedRun:
    """The results of a run."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    """At each report: metrics, `TRAINING`, and the hook's state dicts."""
    end: dict[str, Any] = field(default_factory=dict)
    """Parameters, buffers and optimizer after the run."""
    rows: list[dict[str, Any]] = field(default_factory=list)


class CheckedRuns:
    """Training of one task in one situation, on this rank. All ranks share `folder`."""

    def __init__(self, task: Task, situation: Situation, world: World, folder: Path) -> None:
        self._task = task
        self._situation = situation
        self._world = world
        self._folder = folder
        self._count = 0

    def train(
        self,
        hook: Hook,
        successor: Callable[[int], Hook | None] = lambda number: None,
        *,
        changes: Mapping[str, Any] | None = None,
    ) -> CheckedRun:
        """Train from the beginning to the end, with a checkpoint at every report.

        `successor` gets the number of a report, and returns a new hook to stop and resume with
        there. `changes` are new values of fields at the first report.
        """
        # The process may have drawn numbers before.
        self._count += 1
        torch.manual_seed(self._count)
        folder = self._folder / str(self._count)

        run = CheckedRun()
        recorder = KeepingRecorder()
        loop = self._make_loop(hook, folder, recorder)
        reports = loop.run()
        with self._convert_errors():
            report = next(reports, None)
            while report is not None:
                run.reports.append(self._take_snapshot(hook, report.metrics, loop))
                checkpoint = loop.save()
                number = len(run.reports)
                if number == 1:
                    _change_fields(loop, changes or {})

                next_hook = None if report.is_final else successor(number)
                if next_hook is not None and checkpoint:
                    # The recorder stays, because recent rows are not part of a checkpoint.
                    reports.close()
                    hook = next_hook
                    loop = self._make_loop(hook, folder, recorder)
                    loop.restore(checkpoint)
                    reports = loop.run()
                report = next(reports, None)

        run.rows = recorder.rows
        run.end = _copy_training_state(loop)
        return run

    def _make_loop(self, hook: Hook, folder: Path, recorder: KeepingRecorder) -> SmallLoop:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints = Storage(folder / "checkpoints")
        context = RunContext(
            recorder=recorder,
            world=self._world,
            store=CheckpointStore(checkpoints, NAME, is_master=self._world.is_master),
            artifacts=folder,
            display=Screen(),
            name=NAME,
        )
        settings = {**_make_optimization(self._task), **self._situation.settings}
        loop = make_small_loop(self._task, {NAME: hook}, settings, context)
        plan = loop.runs[0].plan
        if NAME in plan.hooks:
            may_communicate = self._situation.strategy == "fsdp" and hook.ranks is Ranks.ALL
            observes = hook.observes and self._situation.ranks == 1
            watch_calls(hook, plan, collectives=may_communicate, observes=observes)
        return loop

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except HookError as error:
            cause = error.__cause__
            is_refusal = error.event == "on_start" and isinstance(cause, ValueError)
            what = f"refuses to start: {cause}" if is_refusal else str(error)
            raise CheckFailure("runs", what, GIVE_FIELDS) from error
        # A hook that harms training can make it fail in any way.
        except Exception as error:
            if self._situation.ranks > 1:
                raise
            raise CheckFailure(
                "runs",
                f"a run with it fails: {describe_error(error)}",
                "leave alone what training needs; "
                "if the task is the cause, give task= with one that trains",
            ) from error

    def _take_snapshot(
        self, hook: Hook, metrics: Mapping[str, Any], loop: SmallLoop
    ) -> dict[str, Any]:
        training = {"step": loop.state.step, "random": random_state(), **_copy_training_state(loop)}
        snapshot = {"metrics": dict(metrics), TRAINING: training}
        if NAME in loop.runs[0].plan.hooks:
            snapshot["state_dict"] = _read_back("state_dict", hook.state_dict())
            snapshot["rank_state_dict"] = _read_back("rank_state_dict", hook.rank_state_dict())
        return snapshot


def _change_fields(loop: SmallLoop, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        loop.runs[0].plan.set_field(NAME, name, value)


def _copy_training_state(loop: SmallLoop) -> dict[str, Any]:
    state = loop.state
    optimizers = {name: optimizer.state_dict() for name, optimizer in state.optimizers.items()}
    return {
        "parameters": copy_tree(dict(state.module.named_parameters())),
        "buffers": copy_tree(dict(state.module.named_buffers())),
        "optimizer": copy_tree(optimizers),
    }


def _make_optimization(task: Task) -> dict[str, Any]:
    """Return an optimizer and a scheduler that have state to save, unless the task has its own."""
    entries: dict[str, Any] = {
        "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9},
        "scheduler": {"type": "StepLR", "step_size": 1},
    }
    if has_turns(type(task)):
        entry = {**entries["optimizer"], "scheduler": entries["scheduler"]}
        return {"optimizers": dict.fromkeys(task.parameters(task.model()), entry)}
    return {part: entry for part, entry in entries.items() if not has_own_method(type(task), part)}


def _read_back(method: str, state: Any) -> Any:
    """Return a hook's state as a checkpoint returns it; raise CheckFailure if that differs."""
    tree = copy_tree(state)
    file = BytesIO()
    to_do = (
        f"return tensors, numbers, text, and lists and dicts of them from {method}(): "
        "checkpoints are loaded with weights_only=True"
    )
    try:
        torch.save(placeholders.encode(tree, place=method), file)
        loaded = placeholders.decode(torch.load(BytesIO(file.getvalue()), weights_only=True))
    # The pickler may raise anything for the user's own types.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        what = f"{method}() returns what a checkpoint cannot hold: {type(error).__name__}: {reason}"
        raise CheckFailure("state", what, to_do) from error
    if text := find_difference(loaded, tree):
        raise CheckFailure(
            "state", f"the result of {method}() comes back from a checkpoint changed: {text}", to_do
        )
    return loaded
