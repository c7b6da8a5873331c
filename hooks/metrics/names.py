"""Names of metrics and phases."""

from collections.abc import Container, Iterable
from difflib import get_close_matches

PHASES = ("train", "val", "test")
"""Kinds of phases in their order. There may be several of val and test by name: `val/noisy`."""
REPORT_ENTRIES = frozenset({"attempt", "time", "epoch", "step", "iteration", "samples"})
"""Entries of every report other than its metrics, which cannot have these names."""
_MAX_NAMES = 8
"""Largest number of metrics that a message lists."""


def get_kind(phase: str) -> str:
    """Return the kind of a phase: `train`, `val` or `test`."""
    return phase.partition("/")[0]


def list_phases(kind: str, phases: Iterable[str]) -> list[str]:
    """Return the phases of a kind, the one without a name first."""
    return sorted(
        (phase for phase in phases if get_kind(phase) == kind), key=lambda phase: phase != kind
    )


def sort_phases(phases: Iterable[str]) -> list[str]:
    """Sort phases by kind, then by name; other names come last."""
    ranks = {kind: rank for rank, kind in enumerate(PHASES)}
    return sorted(phases, key=lambda phase: (ranks.get(get_kind(phase), len(PHASES)), phase))


def find_phase(metric: str, phases: Iterable[str] = PHASES) -> str:
    """Return the phase that computes a metric: the longest whose name it begins with, or an empty
    string."""
    outer = (phase for phase in phases if f"{metric}/".startswith(f"{phase}/"))
    return max(outer, key=len, default="")


def find_evaluation_label(metric: str, labels: Container[str]) -> str | None:
    """Return the label of the evaluation that computes a metric; None for training, which uses raw
    weights."""
    phase, *parts = metric.split("/")
    if phase == "train" and parts:
        return None
    # The label follows the phase, or the name of a data set: val/ema/loss, val/noisy/ema/loss.
    before_name = parts[:-1]
    return next((part for part in before_name[:2] if part in labels), "")


def list_known(names: Iterable[str], *missing: str) -> str:
    """Return `available: val/loss, val/acc (did you mean 'val/acc'?)`, with the name nearest to
    each missing one. A long list is cut, and has the metrics of validation first."""
    names = list(names)
    near = dict.fromkeys(nearest(metric, names) for metric in missing)
    quoted = ", ".join(f"'{name}'" for name in near if name)
    hint = f" (did you mean {quoted}?)" if quoted else ""
    shown = names
    more = ""
    if len(names) > _MAX_NAMES:
        shown = sorted(names, key=lambda name: not name.startswith("val/"))[:_MAX_NAMES]
        more = f" and {len(names) - _MAX_NAMES} more"
    return f"available: {', '.join(shown) or 'none'}{more}{hint}"


def explain_missing(metric: str, reported: Iterable[str]) -> str:
    """Return that a metric is not among the reported ones, and the nearest."""
    return f"there is no metric '{metric}'; {list_known(reported, metric)}"


def nearest(metric: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name most like a metric's, ignoring case, preferably of the same phase, which is
    val by default."""
    names = list(names)
    if "/" not in metric:
        validated = nearest(f"val/{metric}", names, cutoff)
        if validated:
            return validated
    by_lowercase = {name.lower(): name for name in names}
    phase, _, rest = metric.lower().rpartition("/")
    same_phase = {
        lowercase.removeprefix(f"{phase}/"): name
        for lowercase, name in by_lowercase.items()
        if lowercase.startswith(f"{phase}/")
    }
    matches = get_close_matches(rest, same_phase, 1, cutoff)
    if matches:
        return same_phase[matches[0]]
    matches = get_close_matches(metric.lower(), by_lowercase, 1, max(cutoff, 0.75))
    if matches:
        return by_lowercase[matches[0]]
    if "/" in metric:
        return None

    by_last_part = {name.lower().rpartition("/")[2]: name for name in reversed(names)}
    matches = get_close_matches(metric.lower(), by_last_part, 1, max(cutoff, 0.75))
    return by_last_part[matches[0]] if matches else None
