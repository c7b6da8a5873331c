"""The known name that a wrong one probably means."""

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache

_MAX_LENGTH = 100
"""Length above which a name gets no suggestion."""


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Suggest the nearest known name, ignoring case; None if none is near."""
    return suggest(find_nearest(name, known))


def suggest(nearest: str | None) -> str | None:
    """Return the text of a suggestion; None without a name."""
    return f"did you mean '{nearest}'?" if nearest else None


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest known name, ignoring case; None if none is near."""
    return _find_nearest(name, tuple(known)) if len(name) <= _MAX_LENGTH else None


@lru_cache(maxsize=1000)
def _find_nearest(name: str, known: tuple[str, ...]) -> str | None:
    names = {candidate.lower(): candidate for candidate in known}
    near = _list_near(name.lower(), names)
    return names[near[0]] if near else None


def _list_near(name: str, names: Collection[str]) -> list[str]:
    """Return the names that may be meant, the nearest first; all are in lower case."""
    matches = get_close_matches(name, names, cutoff=0.75)
    near = [match for match in matches if _can_be_meant(name, match)]
    if near:
        return near

    # `cosine` means CosineAnnealingLR, although they have few letters in common.
    if len(name) > 2:
        near = sorted((candidate for candidate in names if name in candidate), key=len)
        if near:
            return near

    # `rl` and `learning_rate` mean `lr`.
    letters = sorted(name)
    initials = "".join(word[:1] for word in name.split("_"))
    for candidate in names:
        if candidate == initials or sorted(candidate) == letters:
            return [candidate]

    # One wrong letter is a large part of a short name.
    return get_close_matches(name, names, n=1) if len(name) <= 5 else []


def _can_be_meant(name: str, candidate: str) -> bool:
    """Return whether no word of the name has another word in its place: `save_best` does not mean
    `save_last`."""
    fewer, more = sorted((name.split("_"), candidate.split("_")), key=len)

    def has_counterpart(word: str) -> bool:
        return any(_are_near(word, other) for other in more)

    return all(has_counterpart(word) for word in fewer)


def _are_near(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    if len(short) < 3 or long.startswith(short):
        return True
    return SequenceMatcher(None, word, other).ratio() >= 0.6
