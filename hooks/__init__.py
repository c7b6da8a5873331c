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
    from hooks.table import *  # noqa: F403  # for type checkers alone: all that the table offers is offered here


def _require_own_orchestrator() -> None:
    """Raise ImportError if a user's package `orchestrator` comes first on the import path, and
    hides this project's."""
    own, spec = (
        Path(__file__).parents[1] / "orchestrator",
        PathFinder.find_spec("orchestrator", sys.path),
    )
    places = (
        [str(place) for place in spec.submodule_search_locations or [str(spec.origin)]]
        if spec
        else []
    )
    if own.is_dir() and places and own.resolve() not in [Path(place).resolve() for place in places]:
        raise ImportError(
            f"the package `orchestrator` must be {own}, got {', '.join(places)}; rename yours to my_orchestrator"
        )


_require_own_orchestrator()


def __getattr__(name: str) -> Any:
    return getattr(import_module("hooks.table"), name)
