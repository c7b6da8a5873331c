"""Mutation of a trial's values, in a population."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.mutation import list_mutated_paths
from orchestrator.sweeps.search.drawing import draw


def mutate(
    sweep: SweepSettings, values: Mapping[str, Any], random: np.random.RandomState
) -> dict[str, Any]:
    """Return the new values of a trial that exploits one with `values`: each is resampled or
    perturbed, as in PBT."""
    scheduler = sweep.scheduler
    assert isinstance(scheduler, PBT)
    changed = copy.deepcopy(dict(values))
    for name in list_mutated_paths(sweep):
        if name not in changed:
            continue
        domain = sweep.space[name]
        resamples = random.uniform() < scheduler.resample_probability
        # An edited domain may not have the value of a resumed trial.
        if resamples or changed[name] not in domain:
            changed[name] = draw(domain, random)
        else:
            changed[name] = _perturb(domain, changed[name], scheduler, random)
    return changed


def _perturb(domain: Domain, value: Any, scheduler: PBT, random: np.random.RandomState) -> Any:
    """Multiply a number by one of the factors, within its domain; in a list, choose the previous or
    next value."""
    if domain.is_list:
        index = domain.values.index(value) + random.choice([-1, 1])
        return domain.values[min(max(index, 0), len(domain.values) - 1)]
    return domain.find_nearest(value * random.choice(scheduler.perturbation_factors))
