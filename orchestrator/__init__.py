"""Hookyard: hooked PyTorch experiments on Ray, and one table of what every rank measured.

This is the public API. A name is imported at its first use, so `import orchestrator` imports
neither ray nor torch.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.runs.display import set_display

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.errors import CheckpointError as CheckpointError
    from orchestrator.errors import ConfigError as ConfigError
    from orchestrator.errors import HookyardError as HookyardError
    from orchestrator.errors import RunError as RunError
    from orchestrator.errors import StorageError as StorageError
    from orchestrator.errors import UsageError as UsageError
    from orchestrator.experiment.load import load_experiment as load_experiment
    from orchestrator.experiment.sections.experiment import Experiment as Experiment
    from orchestrator.runs.listing import list_runs as list_runs
    from orchestrator.runs.result import Run as Run
    from orchestrator.runs.result import open_run as open_run
    from orchestrator.runs.resume import resume as resume
    from orchestrator.runs.start import run as run
    from orchestrator.sweeps.driver import sweep as sweep
    from orchestrator.sweeps.results.result import Sweep as Sweep
    from orchestrator.sweeps.results.result import open_sweep as open_sweep
    from orchestrator.sweeps.resume import resume_sweep as resume_sweep
    from orchestrator.task import Task as Task
    from orchestrator.terminal.display import TerminalDisplay
    from orchestrator.terminal.notebook import NotebookDisplay
    from orchestrator.training_session import TrainingSession as TrainingSession

_MODULE_OF = {
    "CheckpointError": "orchestrator.errors",
    "ConfigError": "orchestrator.errors",
    "Experiment": "orchestrator.experiment.sections.experiment",
    "HookyardError": "orchestrator.errors",
    "Run": "orchestrator.runs.result",
    "RunError": "orchestrator.errors",
    "StorageError": "orchestrator.errors",
    "Sweep": "orchestrator.sweeps.results.result",
    "Task": "orchestrator.task",
    "TrainingSession": "orchestrator.training_session",
    "UsageError": "orchestrator.errors",
    "list_runs": "orchestrator.runs.listing",
    "load_experiment": "orchestrator.experiment.load",
    "open_run": "orchestrator.runs.result",
    "open_sweep": "orchestrator.sweeps.results.result",
    "resume": "orchestrator.runs.resume",
    "resume_sweep": "orchestrator.sweeps.resume",
    "run": "orchestrator.runs.start",
    "sweep": "orchestrator.sweeps.driver",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'orchestrator' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _require_own_hooks() -> None:
    """Raise ImportError if another package `hooks` comes first on the import path."""
    own = Path(__file__).parents[1] / "hooks"
    spec = find_spec("hooks")
    places: list[str] = []
    if spec:
        places = list(spec.submodule_search_locations or [str(spec.origin)])
    if own.resolve() not in [Path(place).resolve() for place in places]:
        first = ", ".join(places) or "none"
        raise ImportError(
            f"the package `hooks` must be {own}, got {first}; rename yours to my_hooks"
        )


def _open_display(folder: "RunFolder", is_sweep: bool) -> "TerminalDisplay | NotebookDisplay":
    from orchestrator.terminal.driver_display import open_display

    return open_display(folder, is_sweep)


_require_own_hooks()
set_display(_open_display)
