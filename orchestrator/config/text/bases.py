"""A file laid over its bases, which may have bases of their own. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.text.bounds import MOST_FILES
from orchestrator.config.text.reader import Document, join, read_yaml
from orchestrator.config.text.source import key_of
from orchestrator.errors import ConfigError, Problem, shortened

SWEPT = "sweep.space.base"


@dataclass
class Layers:
    """A file laid over its bases."""

    document: Document
    folders: list[Path]
    """Of the file and of its bases, each once, the file's own first."""
    alternatives: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The same over other bases: those that its sweep chooses among, by `key_of`."""


def read_layers(path: Path, chosen: Sequence[Any] = ()) -> Layers:
    """Reads a file and its bases, or the last of those `chosen` instead, which may be null for none, and those that its
    sweep chooses among; raises ConfigError for one that cannot be read or is its own base."""
    reader = _Reader()
    document = reader.read(path, chosen)
    layers = Layers(document, reader.folders, {key_of(base): document.data for base in chosen[-1:]})
    for base in _swept(document.data):
        try:
            layers.alternatives[key_of(base)] = _as_a_trial_of(document.data, reader.read(path, [base]).data)
        except ConfigError as error:
            raise ConfigError(
                [document.locate(Problem(SWEPT, problem.message)) for problem in error.problems]
            ) from None
    return layers


def _as_a_trial_of(sweep: Mapping[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """What a file says over another base, with what the trials of a sweep share; raises ConfigError where it says that
    otherwise."""
    for key in ("workers", "environment"):
        if data.get(key) != sweep.get(key):
            message = (
                f"the trials of a sweep share their {key}, and it is {shortened(repr(data.get(key)))} over one,"
                f" {shortened(repr(sweep.get(key)))} over others"
            )
            raise ConfigError([Problem("", f"{message}; say it in this file")])
    return {**data, **{key: sweep[key] for key in ("name", "tags", "notes") if key in sweep}}


class _Reader:
    """Reads files over their bases, not too many of them."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self._count = 0

    def read(self, path: Path, chosen: Sequence[Any] = (), above: Sequence[Path] = ()) -> Document:
        """The file laid over its bases, or over the last of those `chosen` instead; `above` are the files that are laid
        over it."""
        self._count += 1
        if self._count > MOST_FILES:
            raise ConfigError([Problem("base", f"there are more than {MOST_FILES} files below {above[0]}")])
        document = read_yaml(path)
        own = document.data.pop("base", None)
        place = SWEPT if chosen else "base"
        folder = path.resolve().parent
        if folder not in self.folders:
            self.folders.append(folder)
        below: Document | None = None
        for name in _names(chosen[-1] if chosen else own, place, document):
            layer = self._read_base(path.parent / name, place, document, [*above, path])
            below = layer if below is None else _over(below, layer)
        return document if below is None else _over(below, document)

    def _read_base(self, file: Path, place: str, document: Document, above: Sequence[Path]) -> Document:
        seen = [one.resolve() for one in above]
        if file.resolve() in seen:
            way = [*above[seen.index(file.resolve()) :], file]
            raise ConfigError(
                [document.locate(Problem(place, f"is a circle: {' is laid over '.join(one.name for one in way)}"))]
            )
        try:
            return self.read(file, above=above)
        except ConfigError as error:
            raise ConfigError([_told_of(problem, file, place, document) for problem in error.problems]) from None


def _told_of(problem: Problem, file: Path, place: str, document: Document) -> Problem:
    """A problem with reading a base: where there is none such, at the place that names it."""
    if problem.path or problem.line is not None:
        return problem
    return document.locate(Problem(place, f"{shortened(str(file), 200)} {problem.message}"))


def _names(base: Any, place: str, document: Document) -> list[str]:
    names = base if isinstance(base, list) else [] if base is None else [base]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            [document.locate(Problem(place, f"must be a file or a list of files, got {shortened(repr(base))}"))]
        )
    return names


def _swept(data: Mapping[str, Any]) -> list[Any]:
    """What a sweep chooses among for `base`; what is no list of choices is refused with the rest of the space."""
    within: Any = data
    for key in SWEPT.split("."):
        within = within.get(key) if isinstance(within, dict) else None
    choices = next(iter(within.values()), None) if isinstance(within, dict) and len(within) == 1 else None
    return choices if isinstance(choices, list) else []


def _over(below: Document, above: Document) -> Document:
    """One document laid over another, which becomes it."""
    below.forget(set(_merged(below.data, above.data, "")))
    below.origins.update(above.origins)
    below.problems.extend(above.problems)
    return below


def _merged(below: dict[str, Any], above: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lays one over the other, and gives the path of all that it replaces. Mappings are merged; anything else replaces,
    and so does a mapping that names another `type`."""
    for key, value in above.items():
        inner = join(path, key)
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("type", old.get("type")) == old.get("type"):
            yield from _merged(old, value, inner)
            continue
        below[key] = value
        yield inner
