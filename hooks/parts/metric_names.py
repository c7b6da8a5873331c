"""The names of metrics: which there are, and which may have been meant by one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PHASES = ("train", "val", "test")
"""What the metrics of a phase begin with: `val/accuracy`."""


def phase_of(metric: str) -> str:
    """The phase that gives a metric; empty where its name begins with none."""
    first = metric.partition("/")[0]
    return first if first in PHASES else ""


def there_are(names: Iterable[str], *missing: str) -> str:
    """`there are: val/loss, val/accuracy (did you mean 'val/accuracy'?)`: the names, and the nearest to each missing one."""
    names = list(names)
    near = [f"'{found}'" for metric in missing if (found := nearest(metric, names))]
    hint = f" (did you mean {', '.join(near)}?)" if near else ""
    return f"there are: {', '.join(names) or 'none'}{hint}"


def nearest(metric: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The name most like a metric's, upper and lower case aside: of the same phase first, as `val/` says nothing of what was meant.
    One without a phase is taken for one of val."""
    names = list(names)
    if "/" not in metric and (found := nearest(f"val/{metric}", names, cutoff)):
        return found
    whole = {name.lower(): name for name in names}
    phase, _, rest = metric.lower().rpartition("/")
    beside = {name.removeprefix(f"{phase}/"): full for name, full in whole.items() if name.startswith(f"{phase}/")}
    near = get_close_matches(rest, beside, 1, cutoff)
    if near:
        return beside[near[0]]
    near = get_close_matches(metric.lower(), whole, 1, max(cutoff, 0.75))
    return whole[near[0]] if near else None
