"""A hint for an unknown flag that was meant as an override."""

import shlex
from collections.abc import Sequence

from orchestrator.nearest_names import find_nearest


def suggest_override(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the override that a flag was probably meant as, such as `epochs=3` for `--epochs 3`.

    Args:
        flag: The unknown flag.
        arguments: Arguments of the command line, among which the flag may have a value.

    Returns:
        The override; None if the flag is not among the arguments, or no key of an experiment has
        a similar name.
    """
    names = [argument.partition("=")[0] for argument in arguments]
    if flag not in names:
        return None

    key = _find_key(flag)
    if key is None:
        return None
    value = _find_value(arguments[names.index(flag) :])
    return f"{key}={shlex.quote(value or 'VALUE')}"


def _find_value(arguments: Sequence[str]) -> str:
    """Return the value of a flag, which is the first argument; empty if it has none."""
    flag, *following = arguments
    _, equals, value = flag.partition("=")
    if equals:
        return value
    has_value = bool(following) and not following[0].startswith("-")
    return following[0] if has_value else ""


def _find_key(flag: str) -> str | None:
    """Return the key of an experiment with the name of a flag, or a similar name."""
    from orchestrator.experiment.sections.experiment import Experiment

    if not flag.startswith("--"):
        return None
    first, dot, rest = flag.lstrip("-").replace("-", "_").partition(".")
    known = Experiment.model_fields
    nearest = first if first in known else find_nearest(first, known)
    return f"{nearest}{dot}{rest}" if nearest else None
