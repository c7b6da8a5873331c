"""The metrics that an experiment monitors: those that no report can hold are problems."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hooks import HOOKS, Hook
from hooks.hook import find_hook_with_metric
from hooks.metrics.monitored import AUTO, MonitoredMetrics, find_monitored_metrics
from hooks.metrics.names import PHASES, find_phase, list_phases, nearest
from orchestrator.column_names import COSTS
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.fields.class_models import evaluate_annotations
from orchestrator.experiment.make_hooks import find_hook_class
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.notify import parse_target
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code.failures import catch_user_errors


@dataclass(frozen=True)
class MonitoredMetric:
    """A metric, and the key of the experiment that names it."""

    path: str
    name: str
    needed_in_training: bool = False
    """True if a metric of `test` comes too late."""
    of_whole_reports: bool = False
    """True if the metric is looked up in whole reports, which also hold what hooks add."""
    is_auto: bool = False
    """True if the run chooses a metric of `val`; the name is then `auto`."""

    @property
    def phase(self) -> str:
        """`train`, `val` or `test`; empty for a metric without a phase."""
        return "val" if self.is_auto else find_phase(self.name)

    def make_problem(self, message: str, known: Iterable[str] = ()) -> Problem:
        """Return a problem of the metric, which suggests the nearest of the known names."""
        near = nearest(self.name, known)
        hint = f"did you mean '{near}'?" if near else None
        return Problem(self.path, f"'{self.name}' {message}", suggestion=hint)


def find_monitoring_hook(monitored: MonitoredMetrics) -> type[Hook] | None:
    """Return the class of the hook that monitors metrics, or None: the sweep monitors them, or an
    unknown class, or one that does not declare them."""
    name = monitored.path.removeprefix("hooks.")
    kind = str(monitored.entry.get("type", name))
    cls = None if monitored.path == "sweep" else collect_problems([], find_hook_class, kind)
    return cls if cls and cls.monitors == monitored.key else None


def list_metrics_of_hooks(hooks: Mapping[str, Any]) -> Iterator[MonitoredMetric]:
    """Yield the metrics that hooks monitor, from their entries in the experiment."""
    for monitored in find_monitored_metrics({"hooks": hooks}):
        cls = find_monitoring_hook(monitored)
        if cls:
            for name in [AUTO] if monitored.is_auto else monitored.metrics:
                yield MonitoredMetric(
                    f"{monitored.path}.{monitored.key}",
                    name,
                    needed_in_training=cls.monitors_in_training,
                    is_auto=monitored.is_auto,
                )


def list_monitored_metrics(experiment: Experiment) -> Iterator[MonitoredMetric]:
    """Yield the metrics that an experiment monitors: its hooks, its sweep, its alerts."""
    yield from list_metrics_of_hooks(experiment.hooks)
    names: dict[str, Iterable[str]] = {}
    sweep = experiment.sweep
    if sweep:
        if any(map(_decides_metrics, sweep.space)):
            return
        columns = [column.removeprefix("last/") for column in sweep.constraints if "/" in column]
        names = {"sweep.metric": sweep.metrics, "sweep.constraints": columns}
    if experiment.notify and experiment.notify.target:
        names["notify.target"] = parse_target(experiment.notify.target)[:1]
    for path, metrics in names.items():
        yield from (MonitoredMetric(path, name, of_whole_reports=True) for name in metrics)


def _decides_metrics(path: str) -> bool:
    """Return whether a swept path decides what trials measure: task, hooks, validation."""
    is_hook = path.startswith("hooks.") and path.count(".") == 1
    return is_hook or path.startswith(("task", "validate_every")) or path.endswith(".type")


def check_metrics(
    experiment: Experiment, task: Task, hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    """Yield a problem for each monitored metric that no report can hold."""
    has_unknown = has_unknown_metrics(task, hooks.values())
    names = {} if has_unknown else _list_metric_names(task)
    for name in names.get("val", ()):
        hook = find_hook_with_metric(name, hooks)
        if hook is not None:
            yield Problem(
                "task", f"meters() returns '{name}', a metric of the hook '{hook}'; rename it"
            )
    reports = _Reports(names, has_unknown, validates=experiment.validate_every.count > 0)
    for metric in list_monitored_metrics(experiment):
        problem = reports.explain_absence(metric)
        if problem:
            yield problem


@dataclass(frozen=True)
class _Reports:
    """Metrics in the reports of an experiment, as far as they are known."""

    names: Mapping[str, list[str]]
    """Names of the task's metrics by phase, such as `loss`; empty if they are unknown."""
    has_unknown: bool
    validates: bool

    def explain_absence(self, metric: MonitoredMetric) -> Problem | None:
        """Return why no report can hold a metric, or None if one may."""
        phase = metric.phase
        if not phase:
            return None if self._can_lack_phase(metric) else self._explain_missing_phase(metric)
        if phase == "test" and metric.needed_in_training:
            return metric.make_problem("is measured after training; use a metric of train or val")
        if phase == "val" and not self.validates:
            if self.has_unknown and metric.of_whole_reports:
                return None
            return metric.make_problem("is never measured with validate_every: 0")
        if phase not in self.names or _can_be_reported(metric, self.names[phase]):
            return None
        names = [f"{phase}/{name}" for name in self.names[phase]]
        return metric.make_problem(
            f"is not a metric of this task; available: {', '.join(names)}", names
        )

    def _can_lack_phase(self, metric: MonitoredMetric) -> bool:
        """Return whether a report may hold a metric without a phase: a sweep may compare trials by
        `stats/...`, and a custom hook may report any name."""
        is_other = (metric.of_whole_reports and "/" in metric.name) or self.has_unknown
        return is_other and not metric.needed_in_training

    def _explain_missing_phase(self, metric: MonitoredMetric) -> Problem:
        last = metric.name.rpartition("/")[2]
        near: list[str] = []
        for phase in PHASES:
            near += [f"{phase}/{name}" for name in self.names.get(phase, (last,))]
        return metric.make_problem("has no phase; metrics begin with train/, val/ or test/", near)


def _can_be_reported(metric: MonitoredMetric, names: Collection[str]) -> bool:
    """Return whether a report may hold a metric, given the names of the task's metrics."""
    if metric.is_auto or (metric.of_whole_reports and metric.name.endswith(COSTS)):
        return True
    # A meter of several values reports `val/confusion/0`, and averaged weights `val/ema/loss`.
    return not set(names).isdisjoint(metric.name.split("/")[1:])


def has_unknown_metrics(task: Task, hooks: Iterable[Hook]) -> bool:
    """Return whether a custom hook, or the task's own training loop, may report metrics."""
    return has_custom_loop(type(task)) or any(
        HOOKS.name_of(type(hook)) is None
        and (hook.handles("on_phase_end") or hook.handles("on_report"))
        for hook in hooks
    )


def _list_metric_names(task: Task) -> dict[str, list[str]]:
    """Return the names of a task's metrics by phase, as far as they are known."""
    returned = evaluate_annotations(type(task).loss).get("return")
    # Any annotation except a tensor may mean that the loss has parts, which are metrics too.
    if type(task).metrics is not Task.metrics or returned is not Tensor:
        return {}
    meters = make_meters(task)
    if meters is None:
        return {}
    return {"train": ["loss"], "val": ["loss", *meters], "test": ["loss", *meters]}


def make_meters(task: Task) -> Mapping[str, Any] | None:
    """Return the meters of a task, or None if they cannot be made here."""
    try:
        with catch_user_errors("task"):
            return dict(task.meters())
    except ConfigError:  # what it needs may be present only where it trains
        return None


def check_phases_of_metrics(
    metrics: Iterable[MonitoredMetric], phases: Collection[str]
) -> Iterator[Problem]:
    """Yield a problem for each monitored metric of a phase that has no data."""
    for metric in metrics:
        of_kind = list_phases(metric.phase, phases)
        has_data = of_kind if metric.is_auto else find_phase(metric.name, phases)
        if metric.phase and not has_data:
            name = metric.name.rpartition("/")[2]
            near = [f"{phase}/{name}" for phase in of_kind]
            returned = f"data() of the task returns {', '.join(phases)} and no {metric.phase}"
            yield metric.make_problem(f"is never measured: {returned}", near)
