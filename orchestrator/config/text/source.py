"""What was written of an experiment, before anything is filled in: this is what travels, and what a run keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any, Self

from orchestrator.config.text.bounds import DEEPEST
from orchestrator.errors import ConfigError, Problem, collect_problems, shortened
from orchestrator.storage.stored_data import checked, mapping


@dataclass(frozen=True)
class ParentCheckpoint:
    """A checkpoint of another run, which an experiment goes on from with all that is in it."""

    run: str
    """Where that run lies, without keys."""
    checkpoint: str
    sha256: str
    """Of its manifest, which has those of its files."""
    epoch: int
    """Completed epochs."""
    step: int

    def __str__(self) -> str:
        return f"{self.run}, checkpoint {self.checkpoint} (epochs completed: {self.epoch}, steps: {self.step})"


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run begins with: where they lie, and the hash of what was read."""

    path: str
    """A run, a file or a folder."""
    checkpoint: str | None
    """Of a run."""
    weights: str | None
    """Which of a checkpoint's: `model`, or an entry of another file, `ema/model`; of a file the entry that is said."""
    sha256: str
    """Of a run's checkpoint its manifest's, which has those of its files; of a folder that of its files' hashes."""

    def __str__(self) -> str:
        checkpoint = f", checkpoint {self.checkpoint}" if self.checkpoint else ""
        return f"{self.path}{checkpoint}{f' ({self.weights})' if self.weights else ''}"


@dataclass(frozen=True)
class ExperimentSource:
    """A file laid over its bases, and the values that go over it. Plain data, the same in every process."""

    written: Mapping[str, Any]
    """The file laid over its bases."""
    values: tuple[tuple[str, Any], ...] = ()
    """Dotted paths and what each is set to, in order: overrides, then what a trial has chosen."""
    import_paths: tuple[str, ...] = ()
    """Folders in which classes are looked for that are not installed."""
    file: str | None = None
    """Where it was read; None for plain data."""
    base: tuple[Any, ...] = ()
    """The bases that overrides name in place of the file's own; the file was read over the last."""
    continued_from: ParentCheckpoint | None = None
    """Where training begins; None where it begins anew."""
    main_classes: bytes | None = None
    """The classes of a script or a notebook, pickled: they travel with it, and are written into no file."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any], import_paths: Iterable[str | Path] = (), **more: Any) -> Self:
        """A source of plain data; raises ConfigError where it holds what YAML cannot say."""
        folders = dict.fromkeys(str(Path(folder).absolute()) for folder in import_paths)
        return cls(plain_copy(data), import_paths=tuple(folders), **more)

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """A source as it comes back from JSON; raises ValueError where it is not whole."""
        later = ("base", "continued_from", "main_classes")
        missing = [one.name for one in fields(cls) if one.name not in (*later, *mapping(record))]
        if missing:
            raise ValueError(f"it has no `{missing[0]}`")
        source: Self = checked(record, cls)
        return source

    def record(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {name: value for name, value in asdict(self).items() if name != "main_classes"}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The source with more values over it; raises ConfigError for those that YAML cannot say."""
        return replace(self, values=(*self.values, *plain_copy(values).items()))

    def without_sweep(self) -> Self:
        """The source without its sweep."""
        written = {key: value for key, value in self.written.items() if key != "sweep"}
        values = tuple((path, value) for path, value in self.values if path.partition(".")[0] != "sweep")
        return replace(self, written=written, values=values)

    def merged(self) -> tuple[dict[str, Any], list[Problem]]:
        """The file with all values over it, and a problem for each value whose path leads through another value."""
        problems: list[Problem] = []
        data: dict[str, Any] = dict(self.written)
        for path, value in self.values:
            if path == "base":
                problems.append(Problem(path, "is named relative to a file, and there is none here"))
                continue
            data = collect_problems(problems, with_value, data, path, value) or data
        return data, problems


def with_value(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The data with a value at a dotted path; what was given stays as it is.

    Where the path leads through nothing yet, or through something switched off (null, false) or on (true), there is a
    mapping then; an entry of a list that is there has its number, from 0. Raises ConfigError where it leads elsewhere.
    """
    check_path(path)
    changed: dict[str, Any] = _with_value(data, _split(path), 0, value)
    return changed


def check_path(path: str) -> None:
    """Raises ConfigError for a dotted path that leads deeper than any config."""
    if path.count(".") >= DEEPEST:
        raise ConfigError(
            [Problem(shortened(path), f"is a path of {path.count('.') + 1} parts; {DEEPEST} are allowed")]
        )


def _split(path: str) -> list[str]:
    """The keys of a dotted path; what a sweep's space is keyed by is a dotted path itself."""
    keys = path.split(".")
    return [*keys[:2], ".".join(keys[2:])] if keys[:2] == ["sweep", "space"] and len(keys) > 2 else keys


def _with_value(data: Any, keys: Sequence[str], depth: int, value: Any) -> Any:
    if depth == len(keys):
        return value
    if data is None or isinstance(data, bool):
        data = {}
    key, place = keys[depth], ".".join(keys[:depth])
    if isinstance(data, list):
        if not key.isdecimal() or int(key) >= len(data):
            raise ConfigError(
                [
                    Problem(
                        ".".join(keys),
                        f"cannot be set: {place} is a list of {len(data)}, whose entries are numbered from 0",
                    )
                ]
            )
        return [*data[: int(key)], _with_value(data[int(key)], keys, depth + 1, value), *data[int(key) + 1 :]]
    if not isinstance(data, Mapping):
        raise ConfigError(
            [Problem(".".join(keys), f"cannot be set: {place} is {shortened(repr(data))}, not a mapping")]
        )
    return {**data, key: _with_value(data.get(key), keys, depth + 1, value)}


def plain_copy(value: Any) -> Any:
    """A copy that holds only what YAML can say; raises ConfigError."""
    if _deeper_than(DEEPEST, value):
        raise ConfigError([Problem("", f"is nested too deeply: {DEEPEST} levels are allowed")])
    try:
        return json.loads(json.dumps(value, default=plain))
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem("", f"is no plain data: {error}")]) from None


def _deeper_than(levels: int, value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return levels < 0 or any(_deeper_than(levels - 1, one) for one in inner)


def plain(value: Any) -> Any:
    """What a config may hold, for the scalars of NumPy and for paths; raises TypeError for anything else."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
