"""Analysis of a sweep's trials: their order, the Pareto front and parameter importance."""

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
"""Prefix of the columns of parameters."""
SEED = f"{CONFIG}seed"
ENOUGH = 10
"""Least number of trials, or of configurations with repeats, for parameter importance."""
RESAMPLES = 50
"""Number of resampled sets of trials for the spread of importance."""
RESAMPLED = 1000
"""Most trials in each set."""
BINS = 5
"""Number of groups of a parameter's numbers."""


def best_first(trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean") -> pd.DataFrame:
    """Return the trials sorted by the sweep's first metric, those without it last.

    Repeats stay together, in the order of their configurations.
    """
    metric, mode = next(iter(objectives.items()))
    if metric not in trials:
        return trials
    ordered = trials.sort_values(metric, ascending=mode == "min", kind="stable")
    if "configuration" not in trials:
        return ordered
    known = configurations_of(trials, metric, mode, aggregate)
    ordered_repeats = [trial for configuration in known for trial in configuration.trials]
    places = {trial: place for place, trial in enumerate(ordered_repeats)}
    last = {trial: len(places) + place for place, trial in enumerate(ordered.index)}
    return ordered.loc[sorted(ordered.index, key=lambda trial: places.get(trial, last[trial]))]


def configurations_of(trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean") -> list[Configuration]:
    """Return the configurations of a sweep with repeats, the best first."""
    known = trials.dropna(subset=["configuration"]) if len(trials) else trials
    rows = zip(known["configuration"], known.index, known["status"], known[metric], strict=True) if len(known) else ()
    return configurations(
        (Repeat(int(number), str(trial), status, value) for number, trial, status, value in rows), mode, aggregate
    )


def configurations_table(trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean") -> pd.DataFrame:
    """Return one row per configuration, the best first: its values, its metrics over seeds, and its best trial."""
    ordered = configurations_of(trials, metric, mode, aggregate)
    paths = [name for name in trials if str(name).startswith(CONFIG) and name != SEED]
    values = trials.groupby("configuration")[paths].first().to_dict("index") if paths and ordered else {}
    rows = [
        {
            "configuration": configuration.number,
            **values.get(configuration.number, {}),
            **{name: getattr(configuration, name) for name in ("n", "mean", "std", "low", "high")},
            **({"lower_bound": configuration.merit} if aggregate == "lower_bound" else {}),
            **{name: getattr(configuration, name) for name in ("failed", "stopped")},
            "best": configuration.trials[0] if configuration.trials else None,
        }
        for configuration in ordered
    ]
    return pd.DataFrame(rows).set_index("configuration") if rows else pd.DataFrame()


def aggregate_repeats(trials: pd.DataFrame, metric: str, mode: str, aggregate: str) -> pd.DataFrame:
    """Return the trials that have a metric; for repeats one row per configuration, with the aggregate and no seed."""
    known = trials[trials[metric].notna()] if metric in trials else trials.iloc[:0]
    if "configuration" not in known:
        return known
    first = known.drop(columns=[SEED], errors="ignore").groupby("configuration").head(1)
    merits = {group.number: group.merit for group in configurations_of(known, metric, mode, aggregate)}
    return first.assign(**{metric: first["configuration"].map(merits)})


def non_dominated(trials: pd.DataFrame, modes: Mapping[str, str]) -> pd.DataFrame:
    """Return the Pareto front, the best by the first column first. `modes` is column to `max` or `min`.

    Equal trials all stay; a trial without a number in one of the columns does not.
    """
    rated = trials[trials[list(modes)].notna().all(axis=1)]
    signs = [1 if mode == "min" else -1 for mode in modes.values()]
    known, places = np.unique(rated[list(modes)].to_numpy(dtype=float) * signs + 0.0, axis=0, return_inverse=True)
    first, mode = next(iter(modes.items()))
    return rated[_unbeaten(known)[places.ravel()]].sort_values(first, ascending=mode == "min", kind="stable")


def _unbeaten(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of sorted, unique rows are on the Pareto front; no later row can beat an earlier one."""
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
    """Return the importance of each parameter for the metric, the largest first. The shares sum to 1, or are all 0.

    Both methods use ranks only, of the metric and of numbers. So a diverged trial counts like the worst, and a
    logarithmic domain like a linear one. A parameter counts in the trials in which it was drawn.
    """
    return _importance(aggregate_repeats(trials, metric, mode, aggregate), metric, mode, method)


def _importance(units: pd.DataFrame, metric: str, mode: str, method: str) -> pd.Series:
    names = [name for name in units.columns if name.startswith(CONFIG)]
    shares = METHODS[method](units[names], units[metric], mode)
    shares.index = pd.Index([name.removeprefix(CONFIG) for name in names], name="parameter")
    total = shares.sum()
    return (shares / total if total > 0 else shares * 0).sort_values(ascending=False, kind="stable").rename(method)


def importance_table(
    trials: pd.DataFrame, metric: str, mode: str, method: str, aggregate: str = "mean"
) -> pd.DataFrame:
    """Return the importance of each parameter and its `spread`, the bootstrap's standard error (Efron 1979).

    The bootstrap draws `RESAMPLES` sets with a fixed seed, each of at most `RESAMPLED` trials; the spread is scaled for
    larger numbers (m out of n; Bickel, Goetze and van Zwet 1997).
    """
    units = aggregate_repeats(trials, metric, mode, aggregate)
    random, size = np.random.RandomState(0), min(len(units), RESAMPLED)
    sets = [units.iloc[random.randint(len(units), size=size)].reset_index(drop=True) for _ in range(RESAMPLES)]
    shares = [_importance(drawn, metric, mode, method) for drawn in sets]
    all_trials = _importance(units, metric, mode, method)
    spread = pd.DataFrame(shares).std()[all_trials.index] * np.sqrt(size / len(units))
    return pd.DataFrame({"importance": all_trials, "spread": spread})


def default_method() -> str:
    """Return PED-ANOVA if Optuna is installed, else the variance between groups."""
    return "ped_anova" if find_spec("optuna") else "variance"


def _variance(values: pd.DataFrame, metric: pd.Series, mode: str) -> pd.Series:
    """Return for each parameter the share of the variance of the metric's ranks between groups of its values.

    That is Kruskal and Wallis' statistic as the effect size epsilon squared, times the share of trials that drew the
    parameter. The groups are the values of a list, or `BINS` groups of numbers of the same size.
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
    """Return the group of each value: equal values, or neighbouring numbers if there are many."""
    if not _is_range(values):
        return values.astype(str)
    places = (values.astype(float).rank() - 0.5) / len(values)
    return (places * min(BINS, max(2, len(values) // 4))).astype(int)


def _is_range(values: pd.Series) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and values.nunique() > BINS


def _ped_anova(values: pd.DataFrame, metric: pd.Series, mode: str) -> pd.Series:
    """Return Optuna's PED-ANOVA (Watanabe et al. 2023) for the best tenth of the trials, at least five of them.

    NaN for a parameter that the installed version cannot rate.
    """
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
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    return pd.Series(shares, dtype=float).reindex(list(values))


def _encoded(values: pd.Series) -> tuple[pd.Series, Any]:
    """Return values in Optuna's form and their domain; numbers by their rank, from 0 to 1."""
    import optuna

    if _is_range(values):
        return (values.astype(float).rank() - 0.5) / len(values), optuna.distributions.FloatDistribution(0, 1)
    codes, known = pd.factorize(values.astype(str))
    return pd.Series(codes.tolist(), index=values.index), optuna.distributions.CategoricalDistribution(
        range(max(1, len(known)))
    )


METHODS = {"ped_anova": _ped_anova, "variance": _variance}
"""Methods of importance by name."""
