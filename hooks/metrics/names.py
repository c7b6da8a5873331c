"""The names of metrics and of the phases that give them, and which may have been meant by one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PHASES = ("train", "val", "test")
"""The kinds of phases, as they are run. Of val and test there may be several, by name: `val/noisy`."""


def kind_of(phase: str) -> str:
    """`train`, `val` or `test`."""
    return phase.partition("/")[0]


def phases_of(kind: str, phases: Iterable[str]) -> list[str]:
    """Those of a kind, as they are run: the one without a name first."""
    return sorted((phase for phase in phases if kind_of(phase) == kind), key=lambda phase: phase != kind)


def as_run(phases: Iterable[str]) -> list[str]:
    """Phases in the order of their kinds, those of a kind by name; what is none comes last."""
    places = {kind: place for place, kind in enumerate(PHASES)}
    return sorted(phases, key=lambda phase: (places.get(kind_of(phase), len(PHASES)), phase))


def phase_of(metric: str, phases: Iterable[str] = PHASES) -> str:
    """The phase that gives a metric: with whose name it begins, such as `val/accuracy`, the longest where several fit;
    empty where none does."""
    return max((phase for phase in phases if f"{metric}/".startswith(f"{phase}/")), key=len, default="")


def there_are(names: Iterable[str], *missing: str) -> str:
    """`there are: val/loss, val/accuracy (did you mean 'val/accuracy'?)`: the names, and the nearest to each missing
    one."""
    names = list(names)
    near = [f"'{found}'" for metric in missing if (found := nearest(metric, names))]
    hint = f" (did you mean {', '.join(near)}?)" if near else ""
    return f"there are: {', '.join(names) or 'none'}{hint}"


def nearest(metric: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The name most like a metric's, upper and lower case aside: of the same phase first, as `val/` says nothing of
    what was meant. One without a phase is taken for one of val."""
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
