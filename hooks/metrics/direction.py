"""The direction of a metric: whether higher or lower values are better.

An experiment sets it as `mode: max` or `min` beside a metric: in its sweep, in the checkpoint hook,
in any hook that monitors a metric. Otherwise it is that of the task's meter, as torchmetrics'
`higher_is_better` says, or follows from the metric's name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, Literal

from hooks.metrics.names import find_phase

Mode = Literal["max", "min"]

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
_UNITS: dict[str, Mode] = {"_per_s": "max", "_s": "min", "_bytes": "min"}
"""Suffixes of units, the first that matches."""


def find_direction(
    metric: str,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> Mode | None:
    """Return `max` or `min`, whichever of a metric is better, or None if unknown.

    The last part of its name counts before the full name, which may include the name of a dataset.

    Args:
        metric: Name of the metric, such as `val/accuracy`.
        declared: Modes that the experiment sets, from `find_declared_modes`.
        meters: Modes of the task's meters by name, from `find_meter_modes`.
    """
    return (
        _parse_mode((declared or {}).get(metric))
        or _find_direction_by_meter(metric, meters or {})
        or _find_direction_by_name(metric)
    )


def require_direction(
    metric: str,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> Mode:
    """Return the direction; raises ValueError if it is unknown."""
    mode = find_direction(metric, declared, meters)
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


def choose_modes(
    metrics: Sequence[str],
    mode: Mode | Sequence[Mode] | None,
    declared: Mapping[str, str] | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> dict[str, Mode]:
    """Return the mode of each metric, from `mode` for all or each, else as `find_direction` does.

    Raises ValueError if it is unknown, or set for another number of metrics.
    """
    modes = list_modes(mode, len(metrics))
    if len(modes) != len(metrics):
        raise ValueError(
            f"must be one mode, or one for each of {', '.join(metrics)}, got {len(modes)}"
        )
    return {
        name: mode or require_direction(name, declared, meters)
        for name, mode in zip(metrics, modes, strict=True)
    }


def list_modes(mode: Any, count: int) -> list[Mode | None]:
    """Return a mode for each metric; None for anything that is not a mode."""
    modes = mode if isinstance(mode, list) else [mode] * count
    return [_parse_mode(mode) for mode in modes]


def _parse_mode(value: Any) -> Mode | None:
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
    modes = {metric: _find_direction_by_meter(metric, meters) for metric in metrics}
    return {metric: mode for metric, mode in modes.items() if mode}


def _find_direction_by_meter(metric: str, meters: Mapping[str, Mode]) -> Mode | None:
    """Return the direction of the meter that computes a metric: `val/<meter>`, or
    `val/<dataset or average>/<meter>/<part>`."""
    if find_phase(metric) in ("", "train"):
        return None
    for name, mode in meters.items():
        if f"/{name}/" in f"{metric}/":
            return mode
    return None


def _find_direction_by_name(metric: str) -> Mode | None:
    """Return the direction that the unit of a metric and the words of its name agree on."""
    unit = _find_direction_by_unit(metric)
    words = _find_direction_by_words(metric.rpartition("/")[2])
    # The end of acc_s may stand for a student.
    if unit and words and unit != words:
        return None
    return unit or words or _find_direction_by_words(metric)


def _find_direction_by_unit(metric: str) -> Mode | None:
    # In stats/step_s/p95 the unit comes before the statistic.
    for name in (metric, metric.rpartition("/")[0]):
        for end, mode in _UNITS.items():
            if name.endswith(end):
                return mode
    return None


def _find_direction_by_words(metric: str) -> Mode | None:
    """Return the direction that all known words of a name agree on, unless one of them says that it
    is not the metric itself."""
    words = find_words(metric)
    more = not words.isdisjoint(_MORE)
    less = not words.isdisjoint(_LESS)
    if more == less or not words.isdisjoint(_OTHER):
        return None
    return "max" if more else "min"


def find_words(metric: str) -> set[str]:
    """Return the words of a name in lowercase."""
    return set(chain.from_iterable(map(_split_words, re.split(r"[^A-Za-z0-9]+", metric))))


def _split_words(part: str) -> set[str]:
    """Return a part of a name, and its pieces at digits and capitals: also `top` of `top1`, and
    `acc` of `mAcc`."""
    pieces = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)
    return {word.lower() for word in (part, part.rstrip("0123456789"), *pieces)}
