"""A hint for an unknown flag that was meant as an override."""

import shlex
from collections.abc import Callable, Sequence

from orchestrator.nearest_names import find_nearest


def suggest_override(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the override that a flag with the name of a key was meant as: `epochs=3` for
    `--epochs 3`.

    Args:
        flag: The unknown flag.
        arguments: Arguments of the command line, among which the flag may have a value.

    Returns:
        The override; None if the flag is not among the arguments, or no key of an experiment has
        its name.
    """
    from orchestrator.experiment.checks.key_paths import find_key

    return _make_override(flag, arguments, find_key)


def suggest_similar_override(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the override of a key with a similar name, as `suggest_override` does: `epochs=3` for
    `--epoch 3`."""
    return _make_override(flag, arguments, _find_similar_key)


def _make_override(
    flag: str, arguments: Sequence[str], find_key: Callable[[str], str | None]
) -> str | None:
    names = [argument.partition("=")[0] for argument in arguments]
    if flag not in names or not flag.startswith("--"):
        return None

    first, dot, rest = flag.removeprefix("--").replace("-", "_").partition(".")
    key = find_key(first)
    if key is None:
        return None
    value = _find_value(arguments[names.index(flag) :])
    return f"{key}{dot}{rest}={shlex.quote(value or 'VALUE')}"


def _find_value(arguments: Sequence[str]) -> str:
    """Return the value of a flag, which is the first argument; empty if it has none."""
    flag, *following = arguments
    _, equals, value = flag.partition("=")
    if equals:
        return value
    has_value = bool(following) and not following[0].startswith("-")
    return following[0] if has_value else ""


def _find_similar_key(name: str) -> str | None:
    from orchestrator.experiment.sections.experiment import Experiment

    return find_nearest(name, Experiment.model_fields)
