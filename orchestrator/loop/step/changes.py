"""Changes of settings during the run, from the section `changes`. Runs in workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hooks.event_plan import Plan
from hooks.interval import Interval
from hooks.optimizer_name import OptimizerName
from hooks.state import State
from orchestrator.experiment.components import PLAN_KEYS
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.optim.optimization import parse_optimizer_path
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.training import Change
from orchestrator.loop.step.number_changes import Groups, NumberChange, NumberChanges

FieldChange = tuple[str, str, Any]
"""The hook, the field and the new value of a field."""


@dataclass(frozen=True)
class _PlannedChange:
    """A change at its time, by what it sets."""

    at: Interval
    fields: Sequence[FieldChange]
    numbers: Sequence[NumberChange]

    @classmethod
    def parse(cls, change: Change) -> Self:
        fields: list[FieldChange] = []
        numbers: list[NumberChange] = []
        for path, value in change.set.items():
            number = parse_optimizer_path(path)
            if number is None:
                _, hook, field = path.split(".", 2)
                fields.append((hook, field, value))
            else:
                name, key = number
                numbers.append((name, key, value))
        return cls(change.at, fields, numbers)


class FieldChanges:
    """Changes of the mutable fields of hooks."""

    def __init__(self, hooks: Mapping[str, Any], plan: Plan) -> None:
        """Take the hooks as an experiment has them, and the plan that calls them."""
        self._hooks = hooks
        self._plan = plan

    def make(self, changes: Sequence[FieldChange]) -> None:
        """Set fields on the rank that runs their hook; raises ConfigError."""
        for name, field, value in changes:
            hook = self._plan.hooks.get(name)
            if hook is not None:
                self._plan.set_field(name, field, self._convert(name, type(hook), field, value))

    def _convert(self, name: str, cls: type, field: str, value: Any) -> Any:
        """Return the value that a field has in a hook which is made with it."""
        of_plan = set(PLAN_KEYS).difference(list_parameters(cls))
        entry = {**self._hooks[name], field: value}
        settings = {key: entry[key] for key in entry if key != "type" and key not in of_plan}
        changed: Any
        changed, _ = construct(cls, settings, f"hooks.{name}")
        return getattr(changed, field)


class Changes:
    """The experiment's `changes`, each made when it is due.

    Only mutable fields of hooks and numbers of the optimizer may change. A checkpoint holds the
    optimizers' settings at that time, and a resumed experiment applies its own. Every rank does the
    same, without communication.
    """

    def __init__(
        self,
        experiment: Experiment,
        plan: Plan,
        state: State,
        timeline: Timeline,
        numbers: NumberChanges,
    ) -> None:
        """Plan the changes; raises ConfigError for a number that cannot change."""
        self._state = state
        self._fields = FieldChanges(experiment.hooks, plan)
        self.numbers = numbers
        self.pending = sorted(
            map(_PlannedChange.parse, experiment.changes),
            key=lambda change: timeline.count_steps(change.at),
        )
        """Changes not yet made, in order."""
        numbers.check(_list_numbers(self.pending))

    def advance(self) -> None:
        """Make the changes that are due; call it between two iterations. Raises ConfigError."""
        for change in self._take(lambda change: change.at.reached(self._state)):
            self._fields.make(change.fields)
            self.numbers.make(change.numbers, self._state.schedulers)

    def restore(self, saved: Mapping[OptimizerName, Groups]) -> None:
        """Continue from a checkpoint: repeat the changes before it, and give the optimizers in `saved`,
        which have its settings, those of this experiment. Raises ConfigError."""
        past = self._take(self._is_past)
        self._make_fields(past)
        self.numbers.restore(saved, _list_numbers(past), self._state.schedulers)

    def restore_fields(self) -> None:
        """Repeat the changes of hooks' fields before a checkpoint that is evaluated."""
        self._make_fields(self._take(self._is_past))

    def _make_fields(self, changes: Sequence[_PlannedChange]) -> None:
        for change in changes:
            self._fields.make(change.fields)

    def _take(self, is_chosen: Callable[[_PlannedChange], bool]) -> list[_PlannedChange]:
        """Remove changes from those that are pending, and return them."""
        taken = [change for change in self.pending if is_chosen(change)]
        self.pending = [change for change in self.pending if change not in taken]
        return taken

    def _is_past(self, change: _PlannedChange) -> bool:
        """Return whether a checkpoint at this position contains a change.

        A change that is due exactly here comes later.
        """
        state = self._state
        count = change.at.count
        if change.at.unit == "steps":
            is_within = state.step_iteration < state.iteration
            return count < state.step or (count == state.step and is_within)
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)


def _list_numbers(changes: Sequence[_PlannedChange]) -> list[NumberChange]:
    return [number for change in changes for number in change.numbers]
