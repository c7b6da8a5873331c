"""A sweep's space as Optuna has it. It names the values of a list by their index, because a value may
be a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.sweep import SweepSettings

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


def make_distribution(domain: Domain, categories: Sequence[Any]) -> BaseDistribution:
    """Return Optuna's form of a domain; `categories` stand for the values of a list."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if domain.is_list:
        return CategoricalDistribution(categories)
    low, high = domain.ends
    if domain.kind == "qloguniform":  # Optuna has no steps on a logarithmic scale
        return FloatDistribution(low, high, log=True)
    if domain.step is not None and domain.is_integer:
        return IntDistribution(low, high, log=domain.is_logarithmic, step=int(domain.step))
    return FloatDistribution(low, high, log=domain.is_logarithmic, step=domain.step)


def make_params(sweep: SweepSettings, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of Optuna's trial for a point, without values that the space no longer
    contains."""
    params = {}
    for name, value in point.items():
        domain = sweep.space.get(name)
        if domain is None or domain.kind == "fan_out" or value not in domain:
            continue
        params[name] = domain.values.index(value) if domain.is_list else value
    return params


def suggest(domain: Domain, name: str, trial: optuna.Trial) -> Any:
    """Return Optuna's suggestion for a path; for a list Optuna chooses an index, because a value
    may be a mapping."""
    from optuna.distributions import FloatDistribution, IntDistribution

    indices = range(len(domain.values))
    match make_distribution(domain, indices):
        case IntDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case FloatDistribution(low=low, high=high, log=log, step=step):
            return domain.find_nearest(trial.suggest_float(name, low, high, step=step, log=log))
        case _:
            return domain.values[trial.suggest_categorical(name, indices)]
