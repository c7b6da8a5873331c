"""The need of a field: a setting without which the field has no effect."""

from operator import attrgetter

from hooks.interval import Interval

_WORDS: dict[str | bool | None, str] = {None: "null", True: "true", False: "false"}
"""Values as a file has them."""


class Needs:
    """A setting without which a field has no effect, for the field's annotation.

    Args:
        setting: Name of the setting; the path of one in another section.
        *values: The values that are needed; by default all but 0, false and null.

    Example:
        ```python
        std: Annotated[float | None, Needs("average", "power")] = None
        patience: Annotated[int, Needs("every")] = 3
        ```
    """

    def __init__(self, setting: str, *values: str | bool | None) -> None:
        self._setting = setting
        self._values = values

    def __str__(self) -> str:
        """Return the need as a file has it, such as `axis: step or samples`."""
        if not self._values:
            return self._setting
        words = " or ".join(_WORDS.get(value, str(value)) for value in self._values)
        return f"{self._setting}: {words}"

    def is_met(self, settings: object) -> bool:
        """Return whether settings, such as a hook's, have the needed value."""
        value = attrgetter(self._setting)(settings)
        if self._values:
            return value in self._values
        return bool(value) and not _is_zero(value)

    def describe_unmet(self, settings: object) -> str:
        """Return the unmet need as text, such as "without `best`" or "with `every: 0`"."""
        if not self._values and _is_zero(attrgetter(self._setting)(settings)):
            return f"with `{self._setting}: 0`"
        return f"without `{self}`"


def _is_zero(value: object) -> bool:
    if isinstance(value, Interval):
        return value.count == 0
    return value == 0 and not isinstance(value, bool)
