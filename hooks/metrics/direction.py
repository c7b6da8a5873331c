"""Which way a metric is better: as the experiment says, else as the metric's name tells, else not known.

An experiment says it as `mode: max` or `min` beside a metric: in its sweep, in the checkpoint hook, in any hook that
monitors one. MMEngine's `rule: greater` or `less` is read as the same.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Mode = Literal["max", "min"]
Rule = Literal["greater", "less"]

AUTO = "auto"
"""What `best` says where the run chooses its metric."""
HOW_TO_SAY = "write mode: max or mode: min"
MODES: Mapping[str, Mode] = {"greater": "max", "less": "min", "max": "max", "min": "min"}
"""What each word for it means."""
_MORE = frozenset(
    """
    acc accuracy ap ar ari auc auprc auroc bleu chrf cider corr correlation dice f1 hit hits iou jaccard kappa map
    mcc meteor miou mrr ndcg nmi pearson precision psnr purity r2 recall reward roc rouge sensitivity spearman
    specificity speed ssim success throughput top
    """.split()
)
_LESS = frozenset(
    """
    bpb bpc bpd brier cer ece eer er err error errors fid fnr fpr latency logloss loss losses lpips mae mape mse
    msle nll perplexity ppl regret rmse rmsle smape ter wer
    """.split()
)
_UNITS: dict[str, Mode] = {"_per_s": "max", "_s": "min", "_bytes": "min"}
"""Ends of names, the first that fits: of speed more is better, of seconds and bytes less."""


def direction(metric: str, declared: Mapping[str, str] | None = None) -> Mode | None:
    """`max` where more of a metric is better, `min` where less is, None where that is not known: the last part of its
    name tells before all of it, which may have that of a data set. `declared` is what an experiment says, as
    `declared_modes` gives it."""
    return (
        MODES.get((declared or {}).get(metric, ""))
        or _of_unit(metric)
        or _of_words(metric.rpartition("/")[2])
        or _of_words(metric)
    )


def known_direction(metric: str, declared: Mapping[str, str] | None = None) -> Mode:
    """As `direction`; raises ValueError where it is not known."""
    found = direction(metric, declared)
    if found is None:
        raise ValueError(f"cannot tell whether more or less of '{metric}' is better; {HOW_TO_SAY}")
    return found


def not_known(metrics: Sequence[str]) -> str:
    """What to say where the best of some metrics would stand."""
    return (
        f"Whether more or less of {', '.join(metrics)} is better is not known, so no value is called the best. "
        f"An experiment says it as hooks.checkpoint: {{best: {metrics[0]}, mode: max}}, or mode: min."
    )


def directions(
    metrics: Sequence[str],
    mode: str | Sequence[str] | None,
    rule: str | Sequence[str] | None = None,
    declared: Mapping[str, str] | None = None,
) -> dict[str, Mode]:
    """Each metric with what is better of it: as `mode` or `rule` says, one for all or one for each, else as
    `direction`.

    Raises ValueError where it is not known, said twice, or said of another number of metrics.
    """
    if mode is not None and rule is not None:
        raise ValueError(
            f"has both mode={mode} and rule={rule}; rule is MMEngine's word for the same, so say mode alone"
        )
    given = _modes({"mode": mode, "rule": rule}, len(metrics))
    if len(given) != len(metrics):
        raise ValueError(
            f"{len(given)} modes are said for {len(metrics)} metrics ({', '.join(metrics)}); say one for all, or one"
            " for each"
        )
    return {metric: one or known_direction(metric, declared) for metric, one in zip(metrics, given, strict=True)}


def declared_modes(config: Mapping[str, Any], auto: str = AUTO) -> dict[str, Mode]:
    """`max` or `min` of each metric of which an experiment, as plain data, says it: its sweep before its hooks. `auto`
    is the metric that `best: auto` has become."""
    return dict(ChainMap(*(monitored.modes for monitored in find_monitored_metrics(config, auto))))


def best_by(reported: Collection[str], config: Mapping[str, Any], kept_by: str = "") -> tuple[str, Mode] | None:
    """Return the metric by which a run's best is told and which way it is better; None where that is not known.

    `kept_by` is the metric by which its best checkpoint is kept. Until there is one it is the first of `best` of the
    checkpoint hook, or what that hook would choose.
    """
    named = next((monitored.metrics[0] for monitored in find_monitored_metrics(config) if monitored.key == "best"), "")
    chosen = next(iter(of_val(reported)), "") if named == AUTO else named
    metric = kept_by or chosen or choose_main_metric(reported, config)
    mode = direction(metric, declared_modes(config, metric if named == AUTO else AUTO)) if metric else None
    return (metric, mode) if metric and mode else None


def choose_main_metric(reported: Collection[str], config: Mapping[str, Any]) -> str | None:
    """Return the main metric where no checkpoint is kept by one: the first monitored metric of val, else the first
    reported one with a known direction, losses last; None if no direction is known.
    """
    declared = declared_modes(config)
    monitored_names = [metric for monitored in find_monitored_metrics(config) for metric in monitored.metrics]
    candidates = dict.fromkeys([*monitored_names, *of_val(reported)])
    return next((name for name in candidates if name in of_val(reported) and direction(name, declared)), None)


def of_val(reported: Iterable[str]) -> list[str]:
    """The metrics of val among those reported, losses last."""
    return sorted((name for name in reported if name.startswith("val/")), key=lambda name: name.endswith("/loss"))


class MonitoredMetrics(NamedTuple):
    """The metrics that one section of an experiment monitors: the sweep or a hook."""

    path: str
    key: str
    """Under which its metrics stand: `metric`, `best` or `monitor`."""
    entry: dict[str, Any]
    metrics: list[str]
    modes: dict[str, Mode]
    """What it says of its metrics, where it does."""


def find_monitored_metrics(config: Mapping[str, Any], auto: str = AUTO) -> Iterator[MonitoredMetrics]:
    """Yield the metrics that each section of an experiment monitors, the sweep first.

    `config` is plain data that may still be invalid. `auto` is the metric that `best: auto` has chosen.
    """
    hooks = config.get("hooks")
    entries = {f"hooks.{name}": entry for name, entry in hooks.items()} if isinstance(hooks, Mapping) else {}
    for path, entry in {"sweep": config.get("sweep"), **entries}.items():
        if not isinstance(entry, dict):
            continue
        key = "metric" if path == "sweep" else "best" if entry.get("best") else "monitor"
        named = entry.get(key)
        metrics: list[Any] = named if isinstance(named, list) else [auto if named == AUTO else named]
        if metrics and all(isinstance(metric, str) for metric in metrics):
            modes = zip(metrics, _modes(entry, len(metrics)), strict=False)
            yield MonitoredMetrics(path, key, entry, metrics, {metric: mode for metric, mode in modes if mode})


def _modes(entry: Mapping[str, Any], count: int) -> list[Mode | None]:
    given = entry.get("mode") or entry.get("rule")
    return [MODES.get(str(one)) for one in (given if isinstance(given, list) else [given] * count)]


def _of_unit(metric: str) -> Mode | None:
    # In stats/step_s/p95 the unit stands before the statistic.
    names = (metric, metric.rpartition("/")[0])
    return next((mode for name in names for end, mode in _UNITS.items() if name.endswith(end)), None)


def _of_words(metric: str) -> Mode | None:
    """As whole words of a name tell, where all of them tell the same."""
    if re.search(r"\b(bits|nats)_per_(?!s$|sec)", metric.replace("/", " ")):
        return "min"
    words = {word for part in re.split(r"[^A-Za-z0-9]+", metric) for word in _words(part)}
    more, less = bool(words & _MORE), bool(words & _LESS)
    if more == less:
        return None
    return "max" if more else "min"


def _words(part: str) -> set[str]:
    """A part of a name as it is, without trailing digits, and cut at its capitals: `top1` is also `top`, `mAcc` also
    `acc`."""
    pieces = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)
    return {word.lower() for word in (part, part.rstrip("0123456789"), *pieces)}
