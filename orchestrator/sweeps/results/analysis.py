"""What a sweep's table of trials shows: which trials no other one beats, and which parameters mattered."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

CONFIG = "config/"
"""What the columns of parameters begin with."""
ENOUGH = 10
"""Fewer trials than this say little about what mattered."""
RESAMPLES = 50
"""Sets of trials that are drawn to see how far importance is by chance."""
RESAMPLED = 1000
"""The most trials, repeats aside, in each of these sets."""
BINS = 5
"""How many groups a parameter's numbers are put into, by size."""


def best_first(trials: pd.DataFrame, objectives: Mapping[str, str]) -> pd.DataFrame:
    """The trials by the sweep's first metric; of equal ones the first comes first, and those without it at the end."""
    metric, mode = next(iter(objectives.items()))
    return trials.sort_values(metric, ascending=mode == "min", kind="stable") if metric in trials else trials


def non_dominated(trials: pd.DataFrame, modes: Mapping[str, str]) -> pd.DataFrame:
    """The trials that no other trial beats: as good in every column and better in one. The best by the first column
    come first.

    Trials that are equal in all columns beat each other in none and stay together; one without a number in any of them
    is left out. `modes` is column to `max` or `min`.
    """
    judged = trials[trials[list(modes)].notna().all(axis=1)]
    signs = [1 if mode == "min" else -1 for mode in modes.values()]
    known, places = np.unique(judged[list(modes)].to_numpy(dtype=float) * signs + 0.0, axis=0, return_inverse=True)
    first, mode = next(iter(modes.items()))
    return judged[_unbeaten(known)[places.ravel()]].sort_values(first, ascending=mode == "min", kind="stable")


def _unbeaten(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other one beats. They are in order and each is there once, so that none is beaten by a later one: in two
    columns it is who has less in the second than all before, in more each of the front is compared with what is left."""
    if costs.shape[1] <= 2:
        best = np.minimum.accumulate(costs[:, -1])
        return np.concatenate([[True], costs[1:, -1] < best[:-1]])[: len(costs)]
    front, left = np.zeros(len(costs), dtype=bool), np.arange(len(costs))
    while len(left):
        front[left[0]] = True
        left = left[(costs[left] < costs[left[0]]).any(axis=1)]
    return front


# Importance


def importance(trials: pd.DataFrame, metric: str, mode: str, method: str) -> pd.Series:
    """How much each parameter mattered for the metric, the most first; the shares add up to 1, or are all 0.

    Both methods look at orders alone, of the metric and of numbers among the drawn ones, so that a diverged trial
    weighs no more than the worst, and a logarithmic domain is as good as a linear one. A parameter that was not drawn in
    a trial because the hook it belongs to was off there is judged where it was drawn; whether the hook was on
    is the other parameter's merit. Trials without the metric are left out.
    """
    judged = trials[trials[metric].notna()]
    names = [name for name in judged.columns if name.startswith(CONFIG)]
    found = METHODS[method](judged[names], judged[metric], mode)
    found.index = pd.Index([name.removeprefix(CONFIG) for name in names], name="parameter")
    total = found.sum()
    return (found / total if total > 0 else found * 0).sort_values(ascending=False, kind="stable").rename(method)


def importance_table(trials: pd.DataFrame, metric: str, mode: str, method: str) -> pd.DataFrame:
    """The importance of each parameter, and how far it would lie from that with other trials: its `spread`.

    The spread is the bootstrap's standard error (Efron 1979): the standard deviation over `RESAMPLES` sets of as many trials, drawn
    from these with replacement by a fixed seed; trials that repeat each other are drawn together. Of more than `RESAMPLED` sets have so
    many, and the spread is that times the root of the ratio (m out of n; Bickel, Goetze and van Zwet 1997).
    """
    judged = trials[trials[metric].notna()]
    units = pd.factorize(judged["configuration"])[0] if "configuration" in judged else np.arange(len(judged))
    members = np.split(np.argsort(units, kind="stable"), np.cumsum(np.bincount(units))[:-1])
    random, size = np.random.RandomState(0), min(len(members), RESAMPLED)
    sets = [np.concatenate([members[unit] for unit in random.randint(len(members), size=size)]) for _ in range(RESAMPLES)]
    shares = [importance(judged.iloc[places].reset_index(drop=True), metric, mode, method) for places in sets]
    found = importance(judged, metric, mode, method)
    return pd.DataFrame({"importance": found, "spread": pd.DataFrame(shares).std()[found.index] * np.sqrt(size / len(members))})


def default_method() -> str:
    """PED-ANOVA where Optuna is installed, else the variance between groups."""
    return "ped_anova" if find_spec("optuna") else "variance"


def _variance(values: pd.DataFrame, metric: pd.Series, mode: str) -> pd.Series:
    """Of each parameter: which part of the variance of the metric's ranks lies between groups of its values, less what
    chance would put there, times the share of trials in which it was drawn.

    The groups are the values of a list, or of numbers `BINS` groups of the same size: Kruskal and Wallis' statistic as
    the effect size epsilon squared.
    """
    drawn = {name: values[name].dropna() for name in values}
    return pd.Series({name: _between(metric[own.index], _groups(own)) * len(own) / len(values) for name, own in drawn.items()}, dtype=float)


def _between(metric: pd.Series, groups: pd.Series) -> float:
    codes, known = pd.factorize(groups)
    ranks, count = metric.rank().to_numpy(), len(known)
    if count < 2 or len(ranks) <= count or not np.ptp(ranks):
        return 0.0
    total = ((ranks - ranks.mean()) ** 2).sum()
    means = np.bincount(codes, ranks) / np.bincount(codes)
    within = ((ranks - means[codes]) ** 2).sum()
    return max(0.0, 1 - float(within / total) * (len(ranks) - 1) / (len(ranks) - count))


def _groups(values: pd.Series) -> pd.Series:
    """Which values belong together: equal ones where they are few or no numbers, else neighbours."""
    if not _is_range(values):
        return values.astype(str)
    places = (values.astype(float).rank() - 0.5) / len(values)
    return (places * min(BINS, max(2, len(values) // 4))).astype(int)


def _is_range(values: pd.Series) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and values.nunique() > BINS


def _ped_anova(values: pd.DataFrame, metric: pd.Series, mode: str) -> pd.Series:
    """How far each parameter's values in the best tenth of the trials, but at least five, lie from those in all: Optuna's
    PED-ANOVA (Watanabe et al. 2023), NaN for a parameter that the installed version does not judge."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
    encoded = {str(name): _encoded(values[name].dropna()) for name in values}
    codes = pd.DataFrame({name: codes for name, (codes, _) in encoded.items()}, index=values.index, dtype=object)
    for drawn, rank in zip(codes.to_dict("records"), metric.rank(), strict=True):
        params = {str(name): code for name, code in drawn.items() if code == code}
        domains = {name: encoded[name][1] for name in params}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=domains, value=rank))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, 5 / len(metric))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    return pd.Series(found, dtype=float).reindex(list(values))


def _encoded(values: pd.Series) -> tuple[pd.Series, Any]:
    """Values as Optuna takes them, and their domain: numbers by their place among the drawn ones, from 0 to 1."""
    import optuna

    if _is_range(values):
        return (values.astype(float).rank() - 0.5) / len(values), optuna.distributions.FloatDistribution(0, 1)
    codes, known = pd.factorize(values.astype(str))
    return pd.Series(codes.tolist(), index=values.index), optuna.distributions.CategoricalDistribution(range(max(1, len(known))))


METHODS = {"ped_anova": _ped_anova, "variance": _variance}
"""How importance is measured, by name."""
