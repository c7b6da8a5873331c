"""Runs with the hook that is checked: undisturbed, or stopped and resumed at every report; and what each has
come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from hooks.error_text import named_text
from hooks.hook import Hook, Ranks
from hooks.plan import HookError
from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.optim.optimizer import has_own_method
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from orchestrator.randomness import storable_random_state
from orchestrator.storage import Storage
from orchestrator.task import Task, takes_turns
from orchestrator.testing.failure import CheckStopped, Failure
from orchestrator.testing.training import KeepingRecorder, Screen, make_loop
from orchestrator.testing.trees import copied, difference
from orchestrator.testing.watching import Watch

NAME = "checked"
"""What the hook is called in its loop."""


@dataclass(frozen=True)
class Situation:
    """A loop that the hook is checked in: an epoch or two of a few steps, with reports in the middle of them."""

    ranks: int = 1
    strategy: str = "ddp"
    accumulate: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """What an experiment says of it."""
        is_sharded = self.strategy == "fsdp"
        return {
            "epochs": 1 if is_sharded else 2,
            "accumulate": self.accumulate,
            "validate_every": "2 steps" if is_sharded or self.accumulate > 1 else "4 steps",
            "workers": {"count": self.ranks, "strategy": self.strategy},
        }

    def __str__(self) -> str:
        ranks = f"{self.ranks} ranks ({self.strategy})" if self.ranks > 1 else "1 rank"
        return (
            f"{ranks}, {self.accumulate} micro-batches in a step, on the CPU"
            if self.accumulate > 1
            else f"{ranks}, on the CPU"
        )


@dataclass
class Moment:
    """What there is at a report."""

    metrics: dict[str, Any]
    parameters: dict[str, Any]
    buffers: dict[str, Any]
    optimizer: dict[str, Any]
    state_dict: Any
    rank_state_dict: Any


@dataclass
class CheckedRun:
    """What a run has come to."""

    moments: list[Moment] = field(default_factory=list)
    random: list[Any] = field(default_factory=list)
    """The generators' states at each report."""
    end: dict[str, Any] = field(default_factory=dict)
    """What was trained, once the run is over."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)


class Refused(Exception):
    """The hook says at its start that it cannot be in this loop."""


class CheckedRuns:
    """Runs of one task in one situation, on this rank. `folder` is shared by all ranks."""

    def __init__(self, task: Task, situation: Situation, world: World, folder: Path) -> None:
        self._task, self._situation, self._world, self._folder = task, situation, world, folder
        self._count = 0

    def undisturbed(self, hook: Hook, beside: Mapping[str, Hook] | None = None, *, saved: bool = True) -> CheckedRun:
        """From beginning to end, with a checkpoint at every report where it is to be saved."""
        return self._train(hook, lambda number: None, beside or {}, saved)

    def without(self) -> CheckedRun:
        """From beginning to end with a hook that does nothing."""
        return self.undisturbed(Hook())

    def resumed(self, make: Callable[[], Hook]) -> CheckedRun:
        """Stopped at every report, and gone on from its checkpoint by a new hook."""
        return self._train(make(), lambda number: make(), {}, True)

    def resumed_once(self, first: Hook, then: Hook) -> CheckedRun:
        """Stopped at the first report, and gone on by another hook."""
        return self._train(first, lambda number: then if number == 1 else None, {}, True)

    def changed(self, hook: Hook, values: Mapping[str, Any]) -> CheckedRun:
        """Undisturbed, but for fields that get other values at the first report."""

        def change(number: int, loop: Loop) -> None:
            if number == 1:
                for name, value in values.items():
                    loop.plan.change(NAME, name, value)

        return self._train(hook, lambda number: None, {}, True, change)

    def _train(
        self,
        hook: Hook,
        follower: Callable[[int], Hook | None],
        beside: Mapping[str, Hook],
        saved: bool,
        between: Callable[[int, Loop], None] = lambda number, loop: None,
    ) -> CheckedRun:
        self._count += 1
        torch.manual_seed(self._count)  # whatever the process has drawn before
        place = self._folder / str(self._count)
        run, recorder = CheckedRun(), KeepingRecorder()
        loop = self._loop(hook, beside, place, recorder, run)
        reports = loop.run()
        with self._failures_told():
            while (report := next(reports, None)) is not None:
                run.random.append(storable_random_state())
                run.moments.append(self._moment(hook, report.metrics, loop))
                path = loop.save() if saved else None
                number = len(run.moments)
                between(number, loop)
                next_hook = None if report.final else follower(number)
                if next_hook is None or path is None:
                    continue
                reports.close()
                # The same recorder, as what is looked back on is no part of a checkpoint.
                hook, loop = next_hook, self._loop(next_hook, beside, place, recorder, run)
                loop.restore(path.rpartition("/")[2])
                reports = loop.run()
        run.rows, run.end = recorder.rows, _trained(loop)
        return run

    def _loop(
        self, hook: Hook, beside: Mapping[str, Hook], place: Path, recorder: KeepingRecorder, run: CheckedRun
    ) -> Loop:
        place.mkdir(parents=True, exist_ok=True)
        store = CheckpointStore(Storage(place / "checkpoints"), NAME, master=self._world.is_master)
        loop, _ = make_loop(
            self._task,
            {NAME: hook, **beside},
            {**_written_for(self._task), **self._situation.settings},
            recorder,
            world=self._world,
            store=store,
            artifacts=place,
            display=Screen(),
            name=NAME,
        )
        if NAME in loop.plan.hooks:
            collectives = self._situation.strategy == "fsdp" and hook.ranks is Ranks.ALL
            run.watches.append(
                Watch(hook, loop.plan, collectives=collectives, observes=hook.observes and self._situation.ranks == 1)
            )
        return loop

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except HookError as error:
            cause = error.__cause__
            if error.event == "on_start" and isinstance(cause, ValueError):
                raise Refused(str(cause)) from error
            raise CheckStopped(
                Failure(
                    "runs",
                    str(error),
                    "where fields are the reason, let their bounds or __post_init__ refuse them; where it is meant to"
                    " fail, give fields= with which it does not",
                )
            ) from error
        except Exception as error:  # training itself fails in any way where a hook has harmed it
            if self._situation.ranks > 1:
                raise
            to_do = "leave what training needs as it is; where the task is the reason, give task= with one that trains"
            raise CheckStopped(Failure("runs", f"a run with it fails: {named_text(error)}", to_do)) from error

    def _moment(self, hook: Hook, metrics: Mapping[str, Any], loop: Loop) -> Moment:
        runs_here = NAME in loop.plan.hooks
        return Moment(
            dict(metrics),
            **_trained(loop),
            state_dict=read_back("state_dict", hook.state_dict()) if runs_here else {},
            rank_state_dict=read_back("rank_state_dict", hook.rank_state_dict()) if runs_here else {},
        )


def _trained(loop: Loop) -> dict[str, Any]:
    state = loop.state
    return {
        "parameters": copied(dict(state.module.named_parameters())),
        "buffers": copied(dict(state.module.named_buffers())),
        "optimizer": copied({name: optimizer.state_dict() for name, optimizer in state.optimizers.items()}),
    }


def _written_for(task: Task) -> dict[str, Any]:
    """An optimizer and a scheduler with state to save, where the task brings none of its own; for a task that takes
    turns one for each name that its `parameters` gives."""
    written: dict[str, Any] = {
        "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9},
        "scheduler": {"type": "StepLR", "step_size": 1},
    }
    if takes_turns(type(task)):
        each = {**written["optimizer"], "scheduler": written["scheduler"]}
        return {"optimizers": dict.fromkeys(task.parameters(task.model()), each)}
    return {part: entry for part, entry in written.items() if not has_own_method(type(task), part)}


def read_back(method: str, state: Any) -> Any:
    """Return what a checkpoint gives back of a hook's state; raise CheckStopped where it gives something else."""
    tree = copied(state)
    file = BytesIO()
    to_do = (
        f"give tensors, numbers, text, and lists and dicts of them in {method}(): checkpoints are read with"
        " weights_only=True"
    )
    try:
        torch.save(placeholders.encode(tree, place=method), file)
        again = placeholders.decode(torch.load(BytesIO(file.getvalue()), weights_only=True))
    except Exception as error:  # whatever the pickler says of the user's own types
        said = str(error).strip().partition("\n")[0]
        raise CheckStopped(
            Failure("state", f"{method}() gives what a checkpoint cannot hold: {type(error).__name__}: {said}", to_do)
        ) from error
    found = difference(again, tree)
    if found:
        raise CheckStopped(
            Failure("state", f"what {method}() gives comes back from a checkpoint as something else: {found}", to_do)
        )
    return again
