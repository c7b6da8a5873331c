"""Warnings of parameters that are trained but not saved, or get gradients but are not trained. Runs
in workers."""

from collections.abc import Iterator

from torch import nn

from hooks.event_plan import Plan
from hooks.parameter_names import join_names
from hooks.state import State
from orchestrator.loop.saving.state_owners import TaskState, list_hooks, list_unsaved_values
from orchestrator.task import Task

_ADVICE = "Make it a part of the module that model() returns, which is trained, saved and equal on all ranks"


def find_unsaved_parameters(task: Task, plan: Plan, state: State) -> Iterator[str]:
    """Yield a line for each parameter that an optimizer trains and no checkpoint holds."""
    trained = _list_trained(state)
    for path, parameter in _list_outside(task, plan, state):
        if id(parameter) in trained and not TaskState(task).saves(path):
            yield (
                f"the optimizer trains {path}, which is not part of the model, so no checkpoint holds it."
                f" {_ADVICE}; or return it from the task's state_dict()"
            )


def find_untrained_parameters(task: Task, plan: Plan, state: State) -> Iterator[str]:
    """Yield a line for parameters that have a gradient, but that no optimizer trains."""
    trained = _list_trained(state)
    for path, parameter in _list_outside(task, plan, state):
        if _is_untrained(parameter, trained):
            yield (
                f"{path} gets gradients, but no optimizer trains it, because it is not part of the model."
                f" {_ADVICE}"
            )
    named = state.module.named_parameters()
    untrained = [name for name, parameter in named if _is_untrained(parameter, trained)]
    if untrained:
        yield (
            f"parameters of the model get gradients, but no optimizer trains them: {join_names(untrained, 4)}."
            " Create them in model(), not later, and give them to the optimizer, or call"
            " requires_grad_(False) on them"
        )


def _list_outside(task: Task, plan: Plan, state: State) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters outside of the model in the attributes of the task and of the user's
    hooks, with their paths."""
    for _, path, value in list_unsaved_values([TaskState(task), *list_hooks(plan)], state):
        if isinstance(value, nn.Parameter):
            yield path, value


def _list_trained(state: State) -> set[int]:
    """Return the ids of the parameters that optimizers train."""
    trained: set[int] = set()
    for optimizer in state.optimizers.values():
        for group in optimizer.param_groups:
            trained.update(map(id, group["params"]))
    return trained


def _is_untrained(parameter: nn.Parameter, trained: set[int]) -> bool:
    return parameter.grad is not None and id(parameter) not in trained
