"""Changes of settings during the run, from the section `changes`. Runs in workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hooks.event_plan import Plan
from hooks.optimizer_name import OptimizerName
from hooks.state import State
from orchestrator.experiment.make_hooks import make_hook
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.planned_change import HookChange, NumberChange, PlannedChange
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.step.number_changes import Groups, NumberChanges


class HookChanges:
    """Changes of the mutable fields of hooks."""

    def __init__(self, entries: Mapping[str, Any], plan: Plan) -> None:
        """Take the entries of the hooks in the experiment, and the plan that calls them."""
        self._entries = dict(entries)
        self._plan = plan

    def make(self, changes: Iterable[HookChange]) -> None:
        """Set fields on the rank that runs their hook; raises ConfigError."""
        for change in changes:
            name = change.hook
            if name not in self._plan.hooks:
                continue
            self._entries[name] = {**self._entries[name], **change.fields}
            # Only a hook that is made with the values has them as its class converts them.
            changed = make_hook(name, self._entries[name]).hook
            for field in change.fields:
                self._plan.set_field(name, field, getattr(changed, field))


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
        self._hooks = HookChanges(experiment.hooks, plan)
        self.numbers = numbers
        self.pending = sorted(
            (PlannedChange.parse(change.at, change.set) for change in experiment.changes),
            key=lambda change: timeline.count_steps(change.at),
        )
        """Changes not yet made, in order."""
        numbers.check(_list_numbers(self.pending))

    def advance(self) -> None:
        """Make the changes that are due; call it between two iterations. Raises ConfigError."""
        for change in self._take(lambda change: change.at.reached(self._state)):
            self._hooks.make(change.hooks)
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

    def _make_fields(self, changes: Sequence[PlannedChange]) -> None:
        for change in changes:
            self._hooks.make(change.hooks)

    def _take(self, is_chosen: Callable[[PlannedChange], bool]) -> list[PlannedChange]:
        """Remove changes from those that are pending, and return them."""
        taken = [change for change in self.pending if is_chosen(change)]
        self.pending = [change for change in self.pending if change not in taken]
        return taken

    def _is_past(self, change: PlannedChange) -> bool:
        """Return whether a checkpoint at this position contains a change.

        A change that is due exactly here comes later.
        """
        state = self._state
        count = change.at.count
        if change.at.unit == "steps":
            is_within = state.step_iteration < state.iteration
            return count < state.step or (count == state.step and is_within)
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)


def _list_numbers(changes: Sequence[PlannedChange]) -> list[NumberChange]:
    return [number for change in changes for number in change.numbers]
