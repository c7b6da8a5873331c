"""The need of a field: a setting without which the field has no effect."""

from dataclasses import dataclass
from operator import attrgetter

from hooks.interval import Interval


@dataclass(frozen=True)
class Needs:
    """A setting without which a field has no effect, for the field's annotation.

    `average: annealing` needs this value, `axis: step or samples` one of these, and `queue_length`
        any but 0 and null.
    """

    setting: str

    def is_met(self, settings: object) -> bool:
        """Return whether settings, such as a hook's, have the needed value."""
        path, _, allowed = self.setting.partition(": ")
        value = attrgetter(path)(settings)
        if allowed in ("", "true"):
            return bool(value.count if isinstance(value, Interval) else value)
        return ("null" if value is None else str(value)) in allowed.split(" or ")

    def describe_unmet(self, settings: object) -> str:
        """Return the unmet need as text, such as "without `best`" or "with `every: 0`"."""
        is_zero = ": " not in self.setting and attrgetter(self.setting)(settings) is not None
        return f"with `{self.setting}: 0`" if is_zero else f"without `{self.setting}`"
