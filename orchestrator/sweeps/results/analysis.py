"""What a sweep's table of trials shows: which trials no other one beats, and which parameters mattered."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.stats.aggregate.configurations import Configuration, Repeat, configurations

CONFIG = "config/"
"""What the columns of parameters begin with."""
SEED = f"{CONFIG}seed"
ENOUGH = 10
"""Fewer trials than this, or configurations where these are repeated, say little about what mattered."""
RESAMPLES = 50
"""Sets of trials that are drawn to see how far importance is by chance."""
RESAMPLED = 1000
"""The most trials in each of these sets."""
BINS = 5
"""How many groups a parameter's numbers are put into, by size."""


def best_first(trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean") -> pd.DataFrame:
    """The trials by the sweep's first metric; of equal ones the first comes first, and those without it at the end.
    Those that repeat each other stay together, in the order of their configurations."""
    metric, mode = next(iter(objectives.items()))
    if metric not in trials:
        return trials
    ordered = trials.sort_values(metric, ascending=mode == "min", kind="stable")
    if "configuration" not in trials:
        return ordered
    known = configurations_of(trials, metric, mode, aggregate)
    places = {trial: place for place, trial in enumerate(trial for one in known for trial in one.trials)}
    last = {trial: len(places) + place for place, trial in enumerate(ordered.index)}
    return ordered.loc[sorted(ordered.index, key=lambda trial: places.get(trial, last[trial]))]


def configurations_of(trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean") -> list[Configuration]:
    """The configurations of a sweep with repeats, by its table of trials, the best first."""
    known = trials.dropna(subset=["configuration"]) if len(trials) else trials
    rows = zip(known["configuration"], known.index, known["status"], known[metric], strict=True) if len(known) else ()
    return configurations(
        (Repeat(int(number), str(trial), status, value) for number, trial, status, value in rows), mode, aggregate
    )


def configurations_table(trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean") -> pd.DataFrame:
    """One row per configuration, the best first: its values, what its trials reached together, and the best of them."""
    found = configurations_of(trials, metric, mode, aggregate)
    paths = [name for name in trials if str(name).startswith(CONFIG) and name != SEED]
    values = trials.groupby("configuration")[paths].first().to_dict("index") if paths and found else {}
    rows = [
        {
            "configuration": one.number,
            **values.get(one.number, {}),
            **{name: getattr(one, name) for name in ("n", "mean", "std", "low", "high")},
            **({"lower_bound": one.merit} if aggregate == "lower_bound" else {}),
            **{name: getattr(one, name) for name in ("failed", "stopped")},
            "best": one.trials[0] if one.trials else None,
        }
        for one in found
    ]
    return pd.DataFrame(rows).set_index("configuration") if rows else pd.DataFrame()


def judged(trials: pd.DataFrame, metric: str, mode: str, aggregate: str) -> pd.DataFrame:
    """The trials that have a metric; of those that repeat each other one, with the mean of those that ended well, or
    its bound, and without the seed."""
    known = trials[trials[metric].notna()] if metric in trials else trials.iloc[:0]
    if "configuration" not in known:
        return known
    first = known.drop(columns=[SEED], errors="ignore").groupby("configuration").head(1)
    merits = {one.number: one.merit for one in configurations_of(known, metric, mode, aggregate)}
    return first.assign(**{metric: first["configuration"].map(merits)})


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
    """Which rows no other one beats. They are in order and each is there once, so that none is beaten by a later one:
    in two columns it is who has less in the second than all before, in more each of the front is compared with what is
    left."""
    if costs.shape[1] <= 2:
        best = np.minimum.accumulate(costs[:, -1])
        return np.concatenate([[True], costs[1:, -1] < best[:-1]])[: len(costs)]
    front, left = np.zeros(len(costs), dtype=bool), np.arange(len(costs))
    while len(left):
        front[left[0]] = True
        left = left[(costs[left] < costs[left[0]]).any(axis=1)]
    return front


# Importance


def importance(trials: pd.DataFrame, metric: str, mode: str, method: str, aggregate: str = "mean") -> pd.Series:
    """How much each parameter mattered for the metric, the most first; the shares add up to 1, or are all 0.

    Both methods look at orders alone, of the metric and of numbers among the drawn ones, so that a diverged trial
    weighs no more than the worst, and a logarithmic domain is as good as a linear one. A parameter that was not drawn
    in a trial because the hook it belongs to was off there is judged where it was drawn; whether the hook was on is the
    other parameter's merit. Trials without the metric are left out; of those that repeat each other their mean is
    judged.
    """
    return _importance(judged(trials, metric, mode, aggregate), metric, mode, method)


def _importance(units: pd.DataFrame, metric: str, mode: str, method: str) -> pd.Series:
    names = [name for name in units.columns if name.startswith(CONFIG)]
    found = METHODS[method](units[names], units[metric], mode)
    found.index = pd.Index([name.removeprefix(CONFIG) for name in names], name="parameter")
    total = found.sum()
    return (found / total if total > 0 else found * 0).sort_values(ascending=False, kind="stable").rename(method)


def importance_table(
    trials: pd.DataFrame, metric: str, mode: str, method: str, aggregate: str = "mean"
) -> pd.DataFrame:
    """The importance of each parameter, and how far it would lie from that with other trials: its `spread`.

    The spread is the bootstrap's standard error (Efron 1979): the standard deviation over `RESAMPLES` sets of as many
    trials, drawn from these with replacement by a fixed seed; of trials that repeat each other their mean, so that what
    differs between seeds is in it. Of more than `RESAMPLED` sets have so many, and the spread is that times the root of
    the ratio (m out of n; Bickel, Goetze and van Zwet 1997).
    """
    units = judged(trials, metric, mode, aggregate)
    random, size = np.random.RandomState(0), min(len(units), RESAMPLED)
    sets = [units.iloc[random.randint(len(units), size=size)].reset_index(drop=True) for _ in range(RESAMPLES)]
    shares = [_importance(drawn, metric, mode, method) for drawn in sets]
    found = _importance(units, metric, mode, method)
    return pd.DataFrame(
        {"importance": found, "spread": pd.DataFrame(shares).std()[found.index] * np.sqrt(size / len(units))}
    )


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
    return pd.Series(
        {name: _between(metric[own.index], _groups(own)) * len(own) / len(values) for name, own in drawn.items()},
        dtype=float,
    )


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
    """How far each parameter's values in the best tenth of the trials, but at least five, lie from those in all:
    Optuna's PED-ANOVA (Watanabe et al. 2023), NaN for a parameter that the installed version cannot rate."""
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
    return pd.Series(codes.tolist(), index=values.index), optuna.distributions.CategoricalDistribution(
        range(max(1, len(known)))
    )


METHODS = {"ped_anova": _ped_anova, "variance": _variance}
"""How importance is measured, by name."""
