"""Collectives in user code: every rank must call them equally often. Runs in workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from hooks.private_torch import TorchDispatchMode, tree_leaves
from hooks.state import State
from orchestrator.errors import TaskError
from orchestrator.task import Task
from orchestrator.units import format_count
from orchestrator.user_code.failures import find_source_location

Loss = Callable[[Any, Any], Any]


class Collectives(TorchDispatchMode):
    """Mode that calls `report` with the name and the arguments of each starting collective."""

    def __init__(self, report: Callable[[str, Sequence[Any]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no types
        self._report = report

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace == "c10d":
            self._report(func.name().partition("::")[2].strip("_"), args)
        return func(*args, **(kwargs or {}))


def refuse_collectives(
    compute: Loss, task: Task, state: State, samples: int, batches: Sequence[int]
) -> Loss:
    """Return a loss function whose first call refuses collectives that would fail in a later one.

    It raises TaskError. The `samples` of an evaluation do not divide among the ranks. A rank with
    fewer `batches` than another leaves the other waiting, and collectives that join samples need
    equally large batches.
    """
    is_checked = False

    def report(collective: str, arguments: Sequence[Any]) -> None:
        sizes = [
            len(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.ndim
        ]
        if len({*batches}) == 1 and state.batch_size not in sizes:
            return
        each = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(batches))
        size = format_count(samples, "sample")
        raise TaskError(
            f"loss() calls a collective ({collective}), for which all ranks need equal batches, but the {state.phase}"
            f" data has {size} for {state.world_size} ranks (batches: {each}). Give it a multiple of"
            f" {state.world_size} samples, or return a loss without collectives in {state.phase}"
            f" (self.progress.phase){find_source_location(task.loss)}"
        )

    def compute_checked(output: Any, batch: Any) -> Any:
        nonlocal is_checked
        if is_checked:
            return compute(output, batch)
        is_checked = True
        with Collectives(report):
            return compute(output, batch)

    return compute_checked
