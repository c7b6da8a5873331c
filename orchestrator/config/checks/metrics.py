"""The metrics by which an experiment judges, and which of them can be in no report, as far as that is known before
training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import get_annotations
from typing import Any, NamedTuple

from hooks import HOOKS, Hook
from hooks.interval import Interval
from hooks.metrics.direction import find_monitored_metrics
from hooks.metrics.names import PHASES, nearest, phase_of, phases_of
from orchestrator.config.python.user_code import users_code
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task, trains_itself

_GROUPS = {"memory": "memory_stats", "throughput": "throughput"}
"""What metrics of no phase begin with, and the hook that reports them."""
_REPORTED = ("_s", "_bytes")
"""Ends of the names that hooks add to each phase in a report: `val/samples_per_s`."""


class _Asked(NamedTuple):
    """A metric and who judges by it."""

    path: str
    kind: str
    metric: str

    @property
    def phase(self) -> str:
        """`train`, `val` or `test`; empty for a metric of none."""
        return "val" if (self.kind, self.metric) == ("checkpoint", "auto") else phase_of(self.metric)

    def problem(self, message: str, known: Iterable[str] = ()) -> Problem:
        near = nearest(self.metric, known)
        return Problem(self.path, f"{self.metric} {message}", suggestion=f"did you mean '{near}'?" if near else None)


def may_add_metrics(task: Task, hooks: Iterable[Hook]) -> bool:
    """Whether a hook of the user's own may give metrics, or a task that trains by itself, of which nothing is known
    before they do."""
    return trains_itself(type(task)) or any(
        type(hook) not in HOOKS.values() and (hook.handles("on_phase_end") or hook.handles("on_report"))
        for hook in hooks
    )


def metric_problems(data: Mapping[str, Any], task: Task, hooks: Mapping[str, Hook]) -> list[Problem]:
    """A problem for each metric of `data`, an experiment whose hooks are said in full, that no run of it can report."""
    own, never_validates = may_add_metrics(task, hooks.values()), _count(data.get("validate_every")) == 0
    known = None if own else _names_of(task, hooks)
    problems = []
    for asked in _asked(data):
        if asked.kind in ("early_stopping", "param_scheduler") and asked.phase == "test":
            problems.append(
                asked.problem(
                    "comes when training is over, and tells nothing by then; judge by a metric of train or val"
                )
            )
        elif not asked.phase and (asked.kind in ("early_stopping", "param_scheduler") or not own):
            problems.extend(_of_no_phase(asked, known or {}, hooks))
        elif asked.phase == "val" and never_validates and not (own and asked.kind == "sweep"):
            problems.append(asked.problem("is never measured, as validate_every is 0"))
        elif known and asked.metric != "auto" and not _is_known(asked, known[asked.phase]):
            names = [f"{asked.phase}/{name}" for name in known[asked.phase]]
            problems.append(asked.problem(f"is no metric of this task; there are {', '.join(names)}", names))
    return problems


def phase_problems(data: Mapping[str, Any], phases: Collection[str]) -> list[Problem]:
    """A problem for each metric of a phase for which the task brings no data; `phases` are those it brings."""
    return [
        asked.problem(
            f"is never measured, as data() of the task gives {', '.join(phases)} and no {asked.phase}",
            _beside(asked, phases),
        )
        for asked in _asked(data)
        if asked.phase and not _is_of(asked, phases)
    ]


def _is_of(asked: _Asked, phases: Collection[str]) -> bool:
    """Whether one of the phases gives a metric, or the metrics of which one will be chosen."""
    return bool(phases_of("val", phases) if asked.metric == "auto" else phase_of(asked.metric, phases))


def _beside(asked: _Asked, phases: Collection[str]) -> list[str]:
    """The metric's name in each phase of its kind."""
    return [f"{phase}/{asked.metric.rpartition('/')[2]}" for phase in phases_of(asked.phase, phases)]


def _asked(data: Mapping[str, Any]) -> Iterator[_Asked]:
    for monitored in find_monitored_metrics(data):
        kind = monitored.entry.get("type", monitored.path.removeprefix("hooks."))
        if kind in ("checkpoint", "early_stopping", "param_scheduler") or (
            kind == "sweep" and not _decides(monitored.entry.get("space"))
        ):
            yield from (_Asked(f"{monitored.path}.{monitored.key}", kind, metric) for metric in monitored.metrics)


def _decides(space: Any) -> bool:
    """Whether what is swept decides what trials measure: their task, their hooks, whether they validate."""
    paths = space if isinstance(space, Mapping) else ()
    return any(
        path.startswith(("task", "validate_every"))
        or (path.startswith("hooks.") and path.count(".") == 1)
        or path.endswith(".type")
        for path in paths
    )


def _of_no_phase(asked: _Asked, known: Mapping[str, Collection[str]], hooks: Mapping[str, Hook]) -> list[Problem]:
    group = asked.metric.partition("/")[0]
    if asked.kind == "sweep":
        needed = _GROUPS.get(group)
        there = needed is None or any(type(hook) is HOOKS[needed] for hook in hooks.values())
        return [] if there else [asked.problem(f"is what the hook {needed} reports, which is off")]
    names = [f"{phase}/{name}" for phase in PHASES for name in known.get(phase, (asked.metric.rpartition("/")[2],))]
    return [asked.problem(f"is of no phase; metrics begin with {', '.join(f'{phase}/' for phase in PHASES)}", names)]


def _names_of(task: Task, hooks: Mapping[str, Hook]) -> dict[str, list[str]] | None:
    """The names of each phase's metrics; None where only a batch tells."""
    if type(task).metrics is not Task.metrics or not _gives_one_loss(task):
        return None
    meters = None
    with suppress(ConfigError), users_code("task"):  # whatever it needs that is not here, it may have where it trains
        meters = list(task.meters())
    if meters is None:
        return None
    probed = (
        ["knn_accuracy", "linear_accuracy"]
        if any(type(hook) is HOOKS["feature_probe"] for hook in hooks.values())
        else []
    )
    return {"train": ["loss"], "val": ["loss", *meters, *probed], "test": ["loss", *meters]}


def _gives_one_loss(task: Task) -> bool:
    """Whether `loss` is annotated to give a number; any other may give parts, which are metrics too."""
    return str(get_annotations(type(task).loss).get("return")).rpartition(".")[2].strip("'>") == "Tensor"


def _is_known(asked: _Asked, names: Collection[str]) -> bool:
    # A meter of several values gives `val/confusion/0`, and a label of other weights stands before: `val/ema/loss`.
    return any(part in names for part in asked.metric.split("/")[1:]) or (
        asked.kind == "sweep" and asked.metric.endswith(_REPORTED)
    )


def _count(interval: Any) -> int | None:
    """The count of `validate_every` as written; None where it is not written, or wrong."""
    try:
        return Interval.parse(interval).count
    except ValueError:
        return None
