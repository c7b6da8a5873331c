"""Watched calls of a hook: device reads, collectives, columns, and shared state."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

from hooks.due_calls import Call
from hooks.event_plan import Plan
from hooks.hook import WITHIN_ITERATION, Hook
from hooks.state import State
from orchestrator.disk.rows.arrays import make_columns
from orchestrator.loop.step.collective_calls import Collectives
from orchestrator.randomness import random_state
from orchestrator.testing.check_failure import CheckFailure
from orchestrator.testing.device_reads import DeviceReads
from orchestrator.testing.differences import copy_tree, find_difference


def copy_shared_state(state: State) -> dict[str, Any]:
    """Return a copy of what training and all hooks share, which a hook that observes must not
    change."""
    return {
        "random numbers of ": random_state(),
        "state.batch": copy_tree(state.batch),
        "state.output": copy_tree(state.output),
        "state.loss": copy_tree(state.loss),
        "requires_grad of parameter ": {
            name: leaf.requires_grad for name, leaf in state.module.named_parameters()
        },
        "training of module ": {
            name: module.training for name, module in state.module.named_modules()
        },
    }


def watch_calls(hook: Hook, plan: Plan, *, collectives: bool, observes: bool) -> None:
    """Wrap a hook's calls of a plan: they raise CheckFailure for undeclared behavior.

    `collectives` allows these, and `observes` forbids changes of shared state.
    """
    for calls in plan.calls.values():
        for call in calls:
            if plan.hooks.get(call.name) is hook:
                call.run = _wrap_call(hook, call, collectives=collectives, observes=observes)


def _wrap_call(hook: Hook, call: Call, *, collectives: bool, observes: bool) -> Callable[..., None]:
    run = call.run
    is_within_iteration = call.event in WITHIN_ITERATION
    may_wait = call.event in type(hook).waits_for_device or call.interval is not None

    def watched(state: State, *arguments: Any) -> None:
        columns = dict(state.row)
        shared = copy_shared_state(state) if observes else {}
        with ExitStack() as stack:
            if not (collectives or hook.collective):
                stack.enter_context(Collectives(partial(_fail_collective, call.event)))
            if is_within_iteration and not may_wait:
                stack.enter_context(DeviceReads(partial(_fail_read, call.event)))
            run(state, *arguments)

        if observes:
            _check_shared_state(call.event, copy_shared_state(state), shared)
        if is_within_iteration:
            _check_columns(call.event, state.row, columns)

    return watched


def _check_shared_state(event: str, actual: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    for name, value in before.items():
        if change := find_difference(actual[name], value, name):
            raise CheckFailure(
                "observes",
                f"{event} changes what training and other hooks share: {change}",
                "leave it unchanged (torch.random.fork_rng(), a copy of a tensor), "
                "or remove `observes`",
            )


def _check_columns(event: str, row: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    new = {name: value for name, value in row.items() if before.get(name) is not value}
    try:
        make_columns([new], ())
    except ValueError as error:
        raise CheckFailure(
            "columns",
            f"{event} records a value that cannot be a column: {error}",
            "reduce it to a number, or record one column per value",
        ) from None


def _fail_read(event: str, function: str) -> NoReturn:
    raise CheckFailure(
        "device",
        f"{event} waits for the device in every iteration ({function})",
        "record the tensor without reading it, or read it at an interval (@at_interval) or in "
        "on_phase_end; if every iteration needs the value, declare it: "
        f"waits_for_device: ClassVar[frozenset[str]] = frozenset({{'{event}'}})",
    )


def _fail_collective(event: str, collective: str, arguments: Sequence[Any]) -> NoReturn:
    raise CheckFailure(
        "collectives",
        f"{event} calls a collective ({collective}) and does not declare it: "
        "a rank without it would wait forever",
        "declare it: collective: ClassVar[bool] = True, with the default ranks",
    )
