"""The schedule: a scheduler as long as the run, after a warm-up, or several of them, each in its part of the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Self

from annotated_types import Gt, Lt
from torch.optim import Optimizer

from hooks import HOOKS, Hook, ParamScheduler, Rhythm
from orchestrator.config.optim.optimizer import OWN, brings_its_own, in_full_of_own, model_of_own
from orchestrator.config.optim.scheduler import (
    LENGTHS,
    SCHEDULERS,
    Stage,
    argument_names,
    steps_by_a_metric,
    with_length,
)
from orchestrator.config.optim.staged_scheduler import StagedLR, Stretch
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.experiment import Component, Optimization, Scheduler
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task

_FROM_THE_BEGINNING = (*LENGTHS, "milestones")
"""What is counted from the run's beginning, also where the scheduler begins after a warm-up."""


class WarmUp(Model):
    """The part of a run in which the rate rises to where the scheduler begins."""

    warmup: Rhythm = Rhythm(0)
    """Epochs or optimizer steps over which the rate rises in a line; 0 is none."""
    warmup_factor: Annotated[float, Gt(0), Lt(1)] = 0.001
    """The part of the rate that the warm-up begins with."""


class Window(Model):
    """The part of a run in which a scheduler of a list acts, and its pace."""

    begin: Rhythm | None = None
    """Completed epochs or optimizer steps after which it begins: where the one before it ends, where that is not
    said."""
    end: Rhythm | None = None
    """Completed epochs or optimizer steps after which it ends: where the next begins, or with the run."""
    every: Rhythm | None = None
    """How often it steps: once an optimizer step where its begin or end is said in these, else once an epoch."""

    def pace(self) -> Rhythm:
        """How often it steps."""
        in_steps = any(one is not None and one.unit == "steps" for one in (self.begin, self.end))
        return self.every or Rhythm(1, "steps" if in_steps else "epochs")


@dataclass(frozen=True)
class Course:
    """How far a run goes, as its scheduler counts."""

    every: Rhythm
    """How often the scheduler steps."""
    whole: Rhythm
    """How long the run is."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None before there is data."""

    @classmethod
    def of(cls, hooks: Mapping[str, Hook], epochs: Any, steps: Any, steps_per_epoch: int | None = None) -> Self | None:
        """The course of a run of so many epochs or steps; None where no hook of ours steps its scheduler."""
        hook, count = stepping_hook(hooks), epochs if steps is None else steps
        if hook is None:
            return None
        # Where one of them is wrong, which is told elsewhere, the rest is checked with any.
        count = count if type(count) is int and count > 0 else sys.maxsize
        return cls(
            hook.every if hook.every.count else Rhythm(1),
            Rhythm(count, "epochs" if steps is None else "steps"),
            steps_per_epoch,
        )

    def count(self, stretch: Rhythm) -> int | None:
        """How often the scheduler steps in a stretch, whose last part may be cut short; None where that cannot be told
        yet."""
        count, units = stretch.count, (stretch.unit, self.every.unit)
        if units[0] != units[1]:
            if self.steps_per_epoch is None:
                return None
            count = count * self.steps_per_epoch if units[1] == "steps" else -(-count // self.steps_per_epoch)
        return -(-count // self.every.count)


@dataclass(frozen=True)
class Schedule:
    """What sets the rates of an optimizer over the run: a scheduler, or several with the parts of the run that they act
    in."""

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, scheduler: Scheduler, task: type[Task], course: Course | None, path: str = "scheduler") -> Self:
        """The schedule of what is written, its lengths filled in as far as the course knows them; raises ConfigError.
        Without a course, where a hook of the user's own steps the scheduler, nothing is filled in."""
        if isinstance(scheduler, Component):
            return cls(_one(scheduler, task, course, path))
        return cls(tuple(_several(scheduler, task, course, path)))

    def record(self) -> Any:
        """Plain data for a checkpoint."""
        if self._is_whole:  # as it was written before there were stages
            return {
                "kind": self.stages[0].kind,
                "arguments": self.stages[0].arguments,
                "warmup": 0,
                "warmup_factor": 1.0,
            }
        return [{**asdict(stage), "stretch": stage.stretch._asdict()} for stage in self.stages]

    @property
    def _is_whole(self) -> bool:
        """Whether it is one scheduler, from beginning to end and at each step."""
        return len(self.stages) == 1 and self.stages[0].stretch == Stretch()

    def check(self, task: type[Task]) -> None:
        """Refuses what could not be built, before there is an optimizer; raises ConfigError."""
        problems: list[Problem] = []
        for stage in self.stages:
            collect_problems(problems, stage.check, task)
        if problems:
            raise ConfigError(problems)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """The scheduler, None where the task's method gives none; raises ConfigError."""
        if self._is_whole:
            return self.stages[0].build(task, optimizer)
        return StagedLR(
            optimizer,
            [partial(stage.build, task, optimizer) for stage in self.stages],
            [stage.stretch for stage in self.stages],
        )


def _one(scheduler: Component, task: type[Task], course: Course | None, path: str) -> tuple[Stage, ...]:
    """A scheduler for the whole run, after a warm-up where that is said."""
    arguments, ours = _split(scheduler, task, WarmUp, path)
    warm = check(WarmUp, ours, path)
    message = _wrong_warm_up(ours, warm, course)
    if not message and warm.warmup.count and steps_by_a_metric(scheduler, path):
        message = f"does not go with {scheduler.type}, which steps where a metric is there"
    if message:
        raise ConfigError([Problem(f"{path}.{next(iter(ours))}", message)])
    if course is None:
        return (Stage(path, scheduler.type, arguments),)
    begin = course.count(warm.warmup) or 0
    arguments = with_length(scheduler.type, arguments, task, course.count(course.whole) or begin + 1, path)
    if not begin:
        return (Stage(path, scheduler.type, arguments),)
    rising = Stage(path, "LinearLR", {"start_factor": warm.warmup_factor, "total_iters": begin}, Stretch(end=begin))
    return rising, Stage(path, scheduler.type, _counted_from(begin, arguments, path), Stretch(begin))


def _several(schedulers: Sequence[Component], task: type[Task], course: Course | None, path: str) -> Iterator[Stage]:
    """Schedulers that begin together, or each where another ends."""
    if course is None:
        raise ConfigError([Problem(path, "is a list, which needs the hook param_scheduler to step it")])
    over = 0
    for index, (scheduler, window) in enumerate(zip(schedulers, _windows(schedulers, task, path), strict=True)):
        place, whole = f"{path}.{index}", course.count(course.whole)
        arguments, _ = _split(scheduler, task, Window, place)
        begin, end, every = (
            course.count(window.begin or Rhythm(0)),
            course.count(window.end) if window.end else whole,
            course.count(window.pace()),
        )
        if (
            begin is None or end is None or every is None
        ):  # before the data is there, any length will do to check the rest
            yield Stage(place, scheduler.type, with_length(scheduler.type, arguments, task, 1, place))
            continue
        message = _wrong_window(window, (begin, end), over, whole, course)
        if message:
            raise ConfigError([Problem(place, message)])
        over = max(over, end)
        arguments = with_length(scheduler.type, arguments, task, -(-(end - begin) // every), place)
        yield Stage(place, scheduler.type, arguments, Stretch(begin, end if window.end else None, every))


def _wrong_window(window: Window, stretch: tuple[int, int], over: int, whole: int | None, course: Course) -> str | None:
    """What is wrong with where a scheduler begins and ends, in steps of the schedule; those before it end at `over`."""
    begin, end = stretch
    if whole is not None and begin >= whole:
        return f"begins after {window.begin}, and the run is over after {course.whole}"
    if begin >= end:
        return f"begins after {window.begin}, and ends after {window.end}"
    if 0 < begin < over:
        return (
            f"begins after {window.begin}, before another has ended; schedulers follow each other, or begin together"
            " at 0"
        )
    return None


def _windows(schedulers: Sequence[Component], task: type[Task], path: str) -> list[Window]:
    """The parts of the run that schedulers act in, each begin filled in, and each end but the last; raises
    ConfigError."""
    windows: list[Window] = []
    for index, scheduler in enumerate(schedulers):
        place = f"{path}.{index}"
        window = check(Window, _split(scheduler, task, Window, place)[1], place)
        if window.every is not None and not window.every.count:
            raise ConfigError([Problem(f"{place}.every", "is 0, and so it would never step")])
        if steps_by_a_metric(scheduler, place):
            raise ConfigError(
                [Problem(place, f"cannot be one of a list: {scheduler.type} steps where a metric is there")]
            )
        if window.begin is None:
            begin = windows[-1].end if windows else Rhythm(0)
            if begin is None:
                hint = f"write {path}.{index - 1}.end, or begin: 0 to have both at once"
                raise ConfigError(
                    [Problem(place, "begins where the one before it ends, which is not said", suggestion=hint)]
                )
            window = window.model_copy(update={"begin": begin})
        windows.append(window)
    begins = [window.begin for window in windows]
    for index, window in enumerate(windows):
        later = next((begin for begin in begins[index + 1 :] if begin and begin.count), None)
        if window.end is None and later:
            windows[index] = window.model_copy(update={"end": later})
    return windows


def pace_of(optimizations: Sequence[Optimization], task: type[Task]) -> Rhythm | None:
    """How often the hook steps schedulers of a list, so that each has its own pace; None where there is none. Raises
    ConfigError."""
    windows = [
        window
        for one in optimizations
        if isinstance(one.scheduler, list)
        for window in _windows(one.scheduler, task, one.scheduler_path)
    ]
    in_steps = any(
        one is not None and one.unit == "steps"
        for window in windows
        for one in (window.begin, window.end, window.pace())
    )
    return Rhythm(1, "steps" if in_steps else "epochs") if windows else None


def _split(
    scheduler: Component, task: type[Task], ours: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a scheduler's class is given, and which of our keys stand beside it."""
    arguments, names = scheduler.arguments, argument_names(scheduler.type, task, path)
    taken = {key: arguments.pop(key) for key in ours.model_fields if key in arguments and key not in names}
    return arguments, taken


def _counted_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """The arguments with what counts from the run's beginning counted from where the warm-up ends; raises
    ConfigError."""
    counted = {key: arguments[key] for key in _FROM_THE_BEGINNING if key in arguments}
    for key, value in counted.items():
        values = value if isinstance(value, list) else [value]
        if not all(type(one) is int and one > begin for one in values):
            message = f"counts from the run's beginning, and must be greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError([Problem(f"{path}.{key}", message)])
        rest = [one - begin for one in values]
        arguments = {**arguments, key: rest if isinstance(value, list) else rest[0]}
    return arguments


def scheduler_in_full(written: Any, task: type[Task]) -> Any:
    """What is written of the scheduler or schedulers, with their `type`: without one, the arguments of the task's own
    `scheduler`. Raises ConfigError."""
    if isinstance(written, list):
        return [
            _in_full(one, task, Window, f"scheduler.{index}") if isinstance(one, dict) else one
            for index, one in enumerate(written)
        ]
    return None if written is None else _in_full(written, task, WarmUp, "scheduler")


def _in_full(written: Mapping[str, Any], task: type[Task], keys: type[Model], path: str) -> dict[str, Any]:
    own = brings_its_own(task, "scheduler")
    if written.get("type", OWN) != OWN or not own:
        if written.get("type") == OWN:
            raise ConfigError(
                [Problem(f"{path}.type", f"is '{OWN}', and {task.__name__} has no method scheduler() of its own")]
            )
        return dict(written)
    declared = model_of_own(task, "scheduler").model_fields
    ours = {key: value for key, value in written.items() if key in keys.model_fields and key not in declared}
    lengths = [name for name in LENGTHS if name in declared and written.get(name) is None]
    theirs = {key: value for key, value in written.items() if key not in ours} | dict.fromkeys(lengths, 1)
    full = in_full_of_own(theirs, task, "scheduler")
    return {key: value for key, value in full.items() if key not in lengths} | ours


def stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    """The hook that steps the scheduler."""
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


def stepping_problems(
    optimizations: Sequence[Optimization], hooks: Mapping[str, Hook], task: type[Task]
) -> list[Problem]:
    """Where there is a scheduler that nothing steps, a pace to step none, or one that those of a list do not go by."""
    scheduled = [one for one in optimizations if one.scheduler]
    hook, others = stepping_hook(hooks), any(type(one) not in HOOKS.values() for one in hooks.values())
    if hook is None:
        message = "is stepped by nothing: the hook param_scheduler is off"
        return [
            Problem(one.scheduler_path, message, suggestion="leave hooks.param_scheduler on")
            for one in scheduled
            if not others
        ]
    name = next(name for name, one in hooks.items() if one is hook)
    if not scheduled:
        said = {"every": hook.every != ParamScheduler.every, "monitor": hook.monitor is not None}
        message = "is read by nothing: there is no scheduler to step"
        return [
            Problem(f"hooks.{name}.{key}", message, suggestion="write scheduler, or leave it out")
            for key, is_said in said.items()
            if is_said
        ]
    if hook.every.count == 0:
        return [
            Problem(
                f"hooks.{name}.every",
                "is 0, and so nothing steps the scheduler",
                suggestion="write scheduler: null for none",
            )
        ]
    unmet = [problem for one in scheduled for problem in _monitor_problems(one, hook, name)]
    if unmet:
        return unmet
    pace = collect_problems([], pace_of, optimizations, task)
    if pace not in (None, hook.every):
        message = f"is {hook.every}, and schedulers of a list have each its own `every`, for which it is {pace}"
        return [Problem(f"hooks.{name}.every", message, suggestion="leave it out")]
    return []


def _monitor_problems(one: Optimization, hook: ParamScheduler, name: str) -> list[Problem]:
    """Where a scheduler of torch's steps by a metric that the hook does not name, or the hook names one for a scheduler
    that takes none."""
    if not isinstance(one.scheduler, Component) or one.scheduler.type not in SCHEDULERS:
        return []
    kind = one.scheduler.type
    if steps_by_a_metric(one.scheduler, one.scheduler_path):
        hint = f"write hooks.{name}.monitor, such as monitor: val/loss"
        return (
            []
            if hook.monitor
            else [
                Problem(
                    one.scheduler_path,
                    f"is {kind}, which steps where a metric is there, and none is named",
                    suggestion=hint,
                )
            ]
        )
    return (
        [Problem(f"hooks.{name}.monitor", f"is read by nothing: {kind} takes no metric, got '{hook.monitor}'")]
        if hook.monitor
        else []
    )


def _wrong_warm_up(written: Mapping[str, Any], warm: WarmUp, course: Course | None) -> str | None:
    """What is wrong with how a warm-up is written, or with the run for it."""
    if "warmup" not in written:
        return "is read by nothing without warmup; say how long that is" if written else None
    if course is None:
        return "needs the hook param_scheduler to step the scheduler"
    if warm.warmup.unit == "steps" and course.every.unit == "epochs" and warm.warmup.count:
        return (
            f"is {warm.warmup}, and the scheduler steps every {course.every}; write hooks.param_scheduler.every: 1 step"
        )
    begins, total = course.count(warm.warmup), course.count(course.whole)
    if begins and total and begins >= total:
        return f"is {warm.warmup}, and the run is over after {course.whole}"
    return None
