"""The direction of a metric: whether higher or lower values are better.

An experiment sets it as `mode: max` or `min` beside a metric: in its sweep, in the checkpoint hook,
in any hook that monitors a metric. Otherwise it is that of the task's meter, as torchmetrics'
`higher_is_better` says, or follows from the metric's name.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, Literal, NamedTuple

from hooks.metrics.names import find_phase

Mode = Literal["max", "min"]

AUTO = "auto"
"""Value of `best` if the run chooses the metric."""
SET_MODE = "set `mode: max` or `mode: min`"
_MODES: tuple[Mode, ...] = ("max", "min")
_MORE = frozenset(
    """
    acc accuracy ap ar ari auc auprc auroc bleu chrf cider corr correlation dice f1 hit hits iou
    jaccard kappa map mcc meteor miou mrr ndcg nmi npv pearson ppv precision psnr purity r2 recall
    reward roc rouge sensitivity spearman specificity speed ssim success throughput tnr top tpr
    """.split()
)
_LESS = frozenset(
    """
    bpb bpc bpd brier cer ece eer er err error errors fid fnr fpr latency logloss loss losses lpips
    mae mape mse msle nll perplexity ppl regret rmse rmsle smape ter wer
    """.split()
)
_OTHER = frozenset(
    """
    change decrease delta diff difference drop gap improvement increase neg negative reduction std
    stdev threshold var variance
    """.split()
)
"""Words of a name for a difference, a spread, the negative or a threshold of a metric, which have
another direction than the metric, or none."""
_LOSSES = frozenset({"loss", "losses"})
"""Words of the names of losses and of their terms."""
_UNITS: dict[str, Mode] = {"_per_s": "max", "_s": "min", "_bytes": "min"}
"""Suffixes of units, the first that matches."""
_MEASURED = ("/samples_per_s", "/iteration_s", "_bytes")
"""Ends of the metrics of `perf_stats` and `memory_stats`."""


def direction(
    metric: str,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> Mode | None:
    """Return `max` or `min`, whichever of a metric is better, or None if unknown.

    The last part of its name counts before the full name, which may include the name of a dataset.

    Args:
        metric: Name of the metric, such as `val/accuracy`.
        declared: Modes that the experiment sets, from `declared_modes`.
        meters: Modes of the task's meters by name, from `find_meter_modes`.
    """
    return (
        _mode((declared or {}).get(metric))
        or _direction_by_meter(metric, meters or {})
        or _direction_by_name(metric)
    )


def known_direction(
    metric: str,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> Mode:
    """Return the direction; raises ValueError if it is unknown."""
    mode = direction(metric, declared, meters)
    if mode is None:
        phase, slash, name = metric.rpartition("/")
        near = get_close_matches(name, sorted(_MORE | _LESS), 1, cutoff=0.8)
        hint = f" (did you mean '{phase}{slash}{near[0]}'?)" if near else ""
        raise ValueError(
            f"cannot tell whether a higher or a lower '{metric}' is better{hint}; {SET_MODE}"
        )
    return mode


def explain_unknown_direction(metrics: Sequence[str]) -> str:
    """Return a note for metrics without a known direction."""
    return (
        f"It is unknown whether higher or lower values of {', '.join(metrics)} are better,"
        " so no value is the best. "
        f"Set it in the experiment: hooks.checkpoint: {{best: {metrics[0]}, mode: max}}, or mode: min."
    )


def directions(
    metrics: Sequence[str],
    mode: Mode | Sequence[Mode] | None,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> dict[str, Mode]:
    """Return the mode of each metric, from `mode` for all or each, else as `direction` does.

    Raises ValueError if it is unknown, or set for another number of metrics.
    """
    modes = _modes(mode, len(metrics))
    if len(modes) != len(metrics):
        raise ValueError(
            f"must be one mode, or one for each of {', '.join(metrics)}, got {len(modes)}"
        )
    return {
        name: mode or known_direction(name, declared, meters)
        for name, mode in zip(metrics, modes, strict=True)
    }


def declared_modes(config: Mapping[str, Any], auto: str = AUTO) -> dict[str, Mode]:
    """Return the mode of each metric for which an experiment sets one; the sweep comes before
    hooks. `auto` is the metric that `best: auto` has chosen."""
    modes: dict[str, Mode] = {}
    for monitored in find_monitored_metrics(config, auto):
        modes = {**monitored.modes, **modes}
    return modes


def find_best_metric(
    reported: Collection[str],
    config: Mapping[str, Any],
    kept_by: str = "",
    meters: Mapping[str, Mode] | None = None,
) -> tuple[str, Mode] | None:
    """Return a run's main metric and its mode; None if that is unknown.

    `kept_by` is the metric of its best checkpoint. Without one, it is the first of `best` of the
    checkpoint hook, or the metric that this hook would choose.
    """
    kept = [monitored for monitored in find_monitored_metrics(config) if monitored.key == "best"]
    named = kept[0].metrics[0] if kept else ""
    is_auto = named == AUTO
    if is_auto:
        named = next(iter(val_metrics(reported)), "")
    metric = kept_by or named or choose_main_metric(reported, config, meters)
    if not metric:
        return None

    mode = direction(metric, declared_modes(config, metric if is_auto else AUTO), meters)
    return (metric, mode) if mode else None


def choose_main_metric(
    reported: Collection[str],
    config: Mapping[str, Any],
    meters: Mapping[str, Mode] | None = None,
) -> str | None:
    """Return the main metric where no checkpoint is kept by one: the first monitored validation
    metric, else the first reported one with a known direction, losses last; None if no direction is
    known.
    """
    declared = declared_modes(config)
    of_val = val_metrics(reported)
    monitored = chain.from_iterable(part.metrics for part in find_monitored_metrics(config))
    for name in chain(monitored, of_val):
        if name in of_val and direction(name, declared, meters):
            return name
    return None


def val_metrics(reported: Iterable[str]) -> list[str]:
    """Return the metrics of val in the order in which one is chosen: losses come after the others,
    their terms after them, and the speed and memory that default hooks measure last."""
    names = (name for name in reported if name.startswith("val/"))
    return sorted(names, key=_rank)


def _rank(metric: str) -> int:
    if metric.endswith(_MEASURED):
        return 3
    if metric.endswith("/loss"):
        return 1
    words = _find_words(metric.rpartition("/")[2])
    return 0 if words.isdisjoint(_LOSSES) else 2


class MonitoredMetrics(NamedTuple):
    """The metrics that one section of an experiment monitors: the sweep or a hook."""

    path: str
    key: str
    """Key of its metrics: `metric`, `best` or `monitor`."""
    entry: dict[str, Any]
    metrics: list[str]
    modes: dict[str, Mode]
    """Modes that it sets."""


def find_monitored_metrics(
    config: Mapping[str, Any], auto: str = AUTO
) -> Iterator[MonitoredMetrics]:
    """Yield the metrics that each section of an experiment monitors, the sweep first.

    `config` is plain data that may still be invalid. `auto` is the metric that `best: auto` has
    chosen.
    """
    sections = {"sweep": config.get("sweep")}
    hooks = config.get("hooks")
    if isinstance(hooks, Mapping):
        sections |= {f"hooks.{name}": entry for name, entry in hooks.items()}
    for path, entry in sections.items():
        if not isinstance(entry, dict):
            continue
        key = "best" if entry.get("best") else "monitor"
        if path == "sweep":
            key = "metric"
        metrics = entry.get(key)
        if not isinstance(metrics, list):
            metrics = [auto if metrics == AUTO else metrics]
        if metrics and all(isinstance(metric, str) for metric in metrics):
            modes = zip(metrics, _modes(entry.get("mode"), len(metrics)), strict=False)
            known = {metric: mode for metric, mode in modes if mode}
            yield MonitoredMetrics(path, key, entry, metrics, known)


def _modes(mode: Any, count: int) -> list[Mode | None]:
    """Return a mode for each metric; None for anything that is not a mode."""
    modes = mode if isinstance(mode, list) else [mode] * count
    return [_mode(mode) for mode in modes]


def _mode(value: Any) -> Mode | None:
    return next((mode for mode in _MODES if mode == value), None)


def find_meter_modes(meters: Mapping[str, Any]) -> dict[str, Mode]:
    """Return the mode of each meter that has one: torchmetrics' `higher_is_better`.

    Args:
        meters: Torchmetrics objects by name, as `Task.meters` returns them; those of a
            MetricCollection count as `<name>/<key>`.
    """
    modes: dict[str, Mode] = {}
    for name, meter in meters.items():
        is_higher_better = getattr(meter, "higher_is_better", None)
        if isinstance(is_higher_better, bool):
            modes[name] = "max" if is_higher_better else "min"
        elif hasattr(meter, "items"):
            collected = {f"{name}/{key}": part for key, part in meter.items()}
            modes |= find_meter_modes(collected)
    return modes


def find_modes_by_meter(metrics: Iterable[str], meters: Mapping[str, Mode]) -> dict[str, Mode]:
    """Return the mode of each metric that a meter with a mode computes."""
    modes = {metric: _direction_by_meter(metric, meters) for metric in metrics}
    return {metric: mode for metric, mode in modes.items() if mode}


def _direction_by_meter(metric: str, meters: Mapping[str, Mode]) -> Mode | None:
    """Return the direction of the meter that computes a metric: `val/<meter>`, or
    `val/<dataset or average>/<meter>/<part>`."""
    if find_phase(metric) in ("", "train"):
        return None
    for name, mode in meters.items():
        if f"/{name}/" in f"{metric}/":
            return mode
    return None


def _direction_by_name(metric: str) -> Mode | None:
    """Return the direction that the unit of a metric and the words of its name agree on."""
    unit = _direction_by_unit(metric)
    words = _direction_by_words(metric.rpartition("/")[2])
    # The end of acc_s may stand for a student.
    if unit and words and unit != words:
        return None
    return unit or words or _direction_by_words(metric)


def _direction_by_unit(metric: str) -> Mode | None:
    # In stats/step_s/p95 the unit comes before the statistic.
    for name in (metric, metric.rpartition("/")[0]):
        for end, mode in _UNITS.items():
            if name.endswith(end):
                return mode
    return None


def _direction_by_words(metric: str) -> Mode | None:
    """Return the direction that all known words of a name agree on, unless one of them says that it
    is not the metric itself."""
    words = _find_words(metric)
    more = not words.isdisjoint(_MORE)
    less = not words.isdisjoint(_LESS)
    if more == less or not words.isdisjoint(_OTHER):
        return None
    return "max" if more else "min"


def _find_words(metric: str) -> set[str]:
    return set(chain.from_iterable(map(_words, re.split(r"[^A-Za-z0-9]+", metric))))


def _words(part: str) -> set[str]:
    """Return a part of a name, and its pieces at digits and capitals: also `top` of `top1`, and
    `acc` of `mAcc`."""
    pieces = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)
    return {word.lower() for word in (part, part.rstrip("0123456789"), *pieces)}
