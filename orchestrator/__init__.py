"""Hookyard: hooked PyTorch experiments on Ray, and one table of what every rank measured.

This is the public API. Names are imported when they are first used, so that `import orchestrator` brings neither ray
nor torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.config.load import load_experiment
    from orchestrator.config.sections.experiment import Experiment
    from orchestrator.errors import CheckpointError, ConfigError, HookyardError, RunError, StorageError, UsageError
    from orchestrator.runs.driver import resume, run
    from orchestrator.runs.result import Run, open_run
    from orchestrator.sweeps.driver import resume_sweep, sweep
    from orchestrator.sweeps.results.result import Sweep, open_sweep
    from orchestrator.task import Task
    from orchestrator.training_session import TrainingSession

_HOMES = {
    "CheckpointError": "orchestrator.errors",
    "ConfigError": "orchestrator.errors",
    "Experiment": "orchestrator.config.sections.experiment",
    "HookyardError": "orchestrator.errors",
    "Run": "orchestrator.runs.result",
    "RunError": "orchestrator.errors",
    "StorageError": "orchestrator.errors",
    "Sweep": "orchestrator.sweeps.results.result",
    "Task": "orchestrator.task",
    "TrainingSession": "orchestrator.training_session",
    "UsageError": "orchestrator.errors",
    "load_experiment": "orchestrator.config.load",
    "open_run": "orchestrator.runs.result",
    "open_sweep": "orchestrator.sweeps.results.result",
    "resume": "orchestrator.runs.driver",
    "resume_sweep": "orchestrator.sweeps.driver",
    "run": "orchestrator.runs.driver",
    "sweep": "orchestrator.sweeps.driver",
}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Experiment",
    "HookyardError",
    "Run",
    "RunError",
    "StorageError",
    "Sweep",
    "Task",
    "TrainingSession",
    "UsageError",
    "load_experiment",
    "open_run",
    "open_sweep",
    "resume",
    "resume_sweep",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'orchestrator' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _refuse_another_hooks() -> None:
    """Raises ImportError where the import path has a user's `hooks` before Hookyard's, without which nothing runs."""
    own, found = Path(__file__).parents[1] / "hooks", find_spec("hooks")
    places = [str(place) for place in found.submodule_search_locations or [str(found.origin)]] if found else []
    if own.resolve() not in [Path(place).resolve() for place in places]:
        raise ImportError(
            f"`hooks` is Hookyard's own package ({own}), and {', '.join(places) or 'nothing'} is found by that name; "
            "call it something else, such as my_hooks, or start with the command `hookyard`, which looks there last"
        )


_refuse_another_hooks()
