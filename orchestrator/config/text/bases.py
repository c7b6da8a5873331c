"""A file laid over its bases, which may have bases of their own. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.text.reader import Document, join, read_yaml
from orchestrator.errors import ConfigError, Problem, shortened


@dataclass
class Layers:
    """A file laid over its bases."""

    document: Document
    folders: list[Path]
    """Of the file and of its bases, each once, the file's own first."""


def read_layers(path: Path, chosen: Sequence[Any] = ()) -> Layers:
    """Read a file and its bases, or the last of those `chosen` instead, which may be null for none.

    Raises ConfigError for one that cannot be read or is its own base.
    """
    reader = _Reader()
    return Layers(reader.read(path, chosen), reader.folders)


class _Reader:
    """A reader of files over their bases."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def read(self, path: Path, chosen: Sequence[Any] = (), above: Sequence[Path] = ()) -> Document:
        """The file laid over its bases, or over the last of those `chosen` instead; `above` are the files that are laid
        over it."""
        document = read_yaml(path)
        own = document.data.pop("base", None)
        folder = path.resolve().parent
        if folder not in self.folders:
            self.folders.append(folder)
        below: Document | None = None
        for name in _names(chosen[-1] if chosen else own, document):
            layer = self._read_base(path.parent / name, document, [*above, path])
            below = layer if below is None else _over(below, layer)
        return document if below is None else _over(below, document)

    def _read_base(self, file: Path, document: Document, above: Sequence[Path]) -> Document:
        seen = [one.resolve() for one in above]
        if file.resolve() in seen:
            way = [*above[seen.index(file.resolve()) :], file]
            raise ConfigError(
                [document.locate(Problem("base", f"is a circle: {' is laid over '.join(one.name for one in way)}"))]
            )
        try:
            return self.read(file, above=above)
        except ConfigError as error:
            raise ConfigError([_told_of(problem, file, document) for problem in error.problems]) from None


def _told_of(problem: Problem, file: Path, document: Document) -> Problem:
    """A problem with reading a base: where there is none such, at the place that names it."""
    if problem.path or problem.line is not None:
        return problem
    return document.locate(Problem("base", f"{shortened(str(file), 200)} {problem.message}"))


def _names(base: Any, document: Document) -> list[str]:
    names = base if isinstance(base, list) else [] if base is None else [base]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            [document.locate(Problem("base", f"must be a file or a list of files, got {shortened(repr(base))}"))]
        )
    return names


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
