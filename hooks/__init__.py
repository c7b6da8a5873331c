"""Hooks: what happens around a step of a PyTorch training loop. Imports torch, and neither Ray nor
the orchestrator.

Names come from `hooks.table`, imported at their first use. So `hooks.metrics.direction` can be
imported without torch.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers alone: all that the table offers is offered here.
    from hooks.table import *  # noqa: F403


def _require_own_orchestrator() -> None:
    """Raise ImportError if a user's package `orchestrator` comes first on the import path, and
    hides this project's."""
    own = Path(__file__).parents[1] / "orchestrator"
    spec = PathFinder.find_spec("orchestrator", sys.path)
    if spec is None or not own.is_dir():
        return

    places = spec.submodule_search_locations or [str(spec.origin)]
    if own.resolve() not in [Path(place).resolve() for place in places]:
        raise ImportError(
            f"the package `orchestrator` must be {own}, got {', '.join(places)};"
            " rename yours to my_orchestrator"
        )


_require_own_orchestrator()


def __getattr__(name: str) -> Any:
    return getattr(import_module("hooks.table"), name)
