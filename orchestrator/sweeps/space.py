"""The space of a sweep in Ray Tune's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import tune

from orchestrator.config.experiment import Sweep

_DOMAINS: dict[str, Callable[..., Any]] = {
    "uniform": tune.uniform,
    "loguniform": tune.loguniform,
    "quniform": tune.quniform,
    "randint": tune.randint,
    "lograndint": tune.lograndint,
    "normal": tune.randn,
}


def tune_space(sweep: Sweep) -> dict[str, Any]:
    """Each dotted path with its Tune domain; the config module has checked them."""
    return {path: _domain(sweep, domain) for path, domain in sweep.space.items()}


def _domain(sweep: Sweep, domain: dict[str, Any]) -> Any:
    ((kind, values),) = domain.items()
    if kind == "grid" or (kind == "choice" and sweep.search == "grid"):
        return tune.grid_search(values)
    if kind == "choice":
        return tune.choice(values)
    return _DOMAINS[kind](*values)
