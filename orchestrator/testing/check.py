"""`check_hook`, the counterpart of scikit-learn's check_estimator for hooks."""

import os
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from hooks.hook import Hook
from hooks.interval import Interval
from hooks.setup import Setup
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.loop.model.torch_settings import torch_threads
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.testing.case_checks import Case, find_failure_on_rank
from orchestrator.testing.check_failure import CheckFailure, HookCheckFailed
from orchestrator.testing.checked_runs import GIVE_FIELDS, Situation
from orchestrator.testing.ranks import RanksFailed, on_two_ranks
from orchestrator.testing.small_task import SmallTask

SITUATIONS = (Situation(), Situation(ranks=2, accumulate=2), Situation(ranks=2, strategy="fsdp"))
"""The loops in which a hook is checked."""


def check_hook(
    cls: type[Hook],
    *,
    fields: Mapping[str, Any] | None = None,
    task: Task | None = None,
    varies: Collection[str] = (),
) -> None:
    """Check that a hook keeps the promises of hooks: `check_hook(MyHook)`, one line in a test. Takes
    seconds.

    The hook runs in small loops on the CPU: on one rank, on two with accumulation (gloo processes,
    which stay for the next check), and sharded if the hook allows it. Stopped and resumed at every
    report, each must give the same bits. Other processes must be able to import hook and task.

    Args:
        cls: The class of the hook.
        fields: Values as in an experiment file; other fields have their defaults.
        task: A task that the hook needs, such as one with views; use few samples.
        varies: Columns, metrics and entries of state dicts that differ from run to run. Names with
            a unit of time, speed or memory may always differ.

    Raises:
        HookCheckFailed: With the check, the fields, the difference and advice.

    Example:
        ```python
        def test_it_keeps_the_promises_of_a_hook():
            check_hook(WeightNorm, fields={"every": "2 steps"})
        ```
    """
    if not (isinstance(cls, type) and issubclass(cls, Hook)):
        raise TypeError(f"check_hook takes a hook's class, such as check_hook(MyHook), got {cls!r}")
    try:
        _check_class(cls)
    except CheckFailure as error:
        raise HookCheckFailed(error.text(cls.__qualname__)) from None

    plain = {}
    for name, value in (fields or {}).items():
        plain[name] = str(value) if isinstance(value, Interval) else value
    with torch_threads(1):
        for situation in SITUATIONS:
            case = Case(cls, task or SmallTask(), frozenset(varies), plain, situation)
            failure = _find_failure(case)
            if failure:
                raise HookCheckFailed(failure.text(cls.__qualname__, str(case), str(situation)))


def _check_class(cls: type[Hook]) -> None:
    """Raise CheckFailure if a class cannot be a hook of an experiment."""
    if "__dataclass_fields__" not in vars(cls):
        what = "it is not a dataclass, so an experiment cannot set its fields"
        raise CheckFailure("class", what, "put @dataclass above the class")

    fields = list_parameters(cls)
    unknown = sorted(set(cls.mutable) - set(fields))
    if unknown:
        what = (
            f"mutable names {', '.join(unknown)}, which is not a field; fields: {', '.join(fields)}"
        )
        raise CheckFailure("class", what, "name fields")


def _find_failure(case: Case) -> CheckFailure | None:
    """Run the checks of a case, and return the first failure."""
    strategy: Any = case.situation.strategy
    try:
        if case.make().unsuitable(Setup(strategy)):
            return None
    except ConfigError as error:
        return CheckFailure("runs", f"refuses its fields: {error}", GIVE_FIELDS)

    # Memory is faster than a disk, and nothing here has to survive the machine.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        if case.situation.ranks == 1:
            return find_failure_on_rank(World(), case, folder)
        try:
            failures = on_two_ranks(find_failure_on_rank, case, folder)
        except RanksFailed as error:
            to_do = (
                "call collectives on all ranks alike; define the classes of hook and task in a "
                "module, so that another process can import them"
            )
            return CheckFailure("two ranks", str(error), to_do)
    return next(filter(None, failures), None)
