"""An experiment as written, before defaults are filled in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any, Self

from orchestrator.errors import ConfigError, Problem, collect_problems, shorten
from orchestrator.storage.stored_data import check_mapping, validate

MAX_DEPTH = 64
"""Limit of nested mappings and lists, and of the keys of a dotted path."""
_NAMED = ("sweep.scheduler", "sweep.search")
"""Keys whose mapping may be written as its `type` alone."""


@dataclass(frozen=True)
class ParentCheckpoint:
    """The checkpoint of another run that an experiment continues from."""

    run: str
    """Location of that run, without credentials."""
    checkpoint: str
    sha256: str
    """Hash of its manifest, which has the hashes of its files."""
    epoch: int
    """Completed epochs."""
    step: int

    def __str__(self) -> str:
        position = f"epochs completed: {self.epoch}, steps: {self.step}"
        return f"{self.run}, checkpoint {self.checkpoint} ({position})"


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run started from: their location and hash."""

    path: str
    """A run, a file or a folder."""
    checkpoint: str | None
    """Checkpoint of a run."""
    weights: str | None
    """Weights in a checkpoint, `model` or the entry of another file, such as `ema/model`; or the
    entry of a file."""
    sha256: str
    """Hash of a checkpoint's manifest, of a file, or of the hashes of a folder's files."""

    def __str__(self) -> str:
        checkpoint = f", checkpoint {self.checkpoint}" if self.checkpoint else ""
        weights = f" ({self.weights})" if self.weights else ""
        return f"{self.path}{checkpoint}{weights}"


@dataclass(frozen=True)
class ExperimentSource:
    """A file merged with its bases, and the values set over it.

    Workers and trials receive this plain data, and a run keeps it.
    """

    written: Mapping[str, Any]
    """The file merged with its bases."""
    values: tuple[tuple[str, Any], ...] = ()
    """Dotted paths and their values, in order: overrides, then a trial's values."""
    import_paths: tuple[str, ...] = ()
    """Folders to import classes from that are not installed."""
    continued_from: ParentCheckpoint | None = None
    """Checkpoint of another run to continue from; None for a new start."""
    main_classes: bytes | None = None
    """Pickled classes of a script or a notebook; sent to other processes, never written to a
    file."""

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any], import_paths: Iterable[str | Path] = (), **more: Any
    ) -> Self:
        """Return the source of plain data; raise ConfigError for values that YAML cannot hold."""
        folders = dict.fromkeys(str(Path(folder).absolute()) for folder in import_paths)
        return cls(to_plain_data(data), import_paths=tuple(folders), **more)

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """Return a source from its JSON form; raise ValueError if it is incomplete."""
        optional = ("continued_from", "main_classes")
        present = check_mapping(record).keys() | set(optional)
        missing = [field.name for field in fields(cls) if field.name not in present]
        if missing:
            raise ValueError(f"it has no `{missing[0]}`")
        return validate(record, cls)

    def record(self) -> dict[str, Any]:
        """Return the part that a run keeps, as JSON data."""
        return {name: value for name, value in asdict(self).items() if name != "main_classes"}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return the source with more values over it.

        Raises ConfigError for values that YAML cannot hold.
        """
        return replace(self, values=(*self.values, *to_plain_data(values).items()))

    def without_sweep(self) -> Self:
        written = {key: value for key, value in self.written.items() if key != "sweep"}
        values = tuple(
            (path, value) for path, value in self.values if path.partition(".")[0] != "sweep"
        )
        return replace(self, written=written, values=values)

    def merged(self) -> tuple[dict[str, Any], list[Problem]]:
        """Return the file with all values set, and the problems of paths that cannot be set."""
        problems: list[Problem] = []
        data: dict[str, Any] = dict(self.written)
        for path, value in self.values:
            data = collect_problems(problems, with_value, data, path, value) or data
        return data, problems


def with_value(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the data with a value set at a dotted path; the original stays unchanged.

    Creates mappings on the way, also in place of null, true and false. A number, from 0, selects an
    entry of a list. Raises ConfigError where the path leads through any other value.
    """
    check_path(path)
    changed: dict[str, Any] = _with_value(data, _split(path), 0, value)
    return changed


def expand_short_form(value: Any, path: str) -> Any:
    """Return the mapping that a name stands for at one of _NAMED; any other value unchanged."""
    return {"type": value} if path in _NAMED and isinstance(value, str) else value


def check_path(path: str) -> None:
    """Raise ConfigError for a dotted path that is deeper than any config."""
    count = path.count(".") + 1
    if count > MAX_DEPTH:
        raise ConfigError.at(shorten(path), f"has {count} keys; at most {MAX_DEPTH} are allowed")


def _split(path: str) -> list[str]:
    """Split a dotted path into keys; the keys of a sweep's space are dotted paths themselves."""
    keys = path.split(".")
    if keys[:2] == ["sweep", "space"] and len(keys) > 2:
        return [*keys[:2], ".".join(keys[2:])]
    return keys


def _with_value(data: Any, keys: Sequence[str], depth: int, value: Any) -> Any:
    if depth == len(keys):
        return value
    if data is None or isinstance(data, bool):
        data = {}
    key = keys[depth]
    parent = ".".join(keys[:depth])
    data = expand_short_form(data, parent)
    if isinstance(data, Mapping):
        return {**data, key: _with_value(data.get(key), keys, depth + 1, value)}
    if isinstance(data, list) and key.isdecimal() and int(key) < len(data):
        changed = list(data)
        changed[int(key)] = _with_value(data[int(key)], keys, depth + 1, value)
        return changed

    if isinstance(data, list):
        shown = f"a list of {len(data)}, numbered from 0"
    else:
        shown = f"{shorten(repr(data))}, not a mapping"
    raise ConfigError.at(".".join(keys), f"cannot be set: {parent} is {shown}")


def to_plain_data(value: Any, path: str = "") -> Any:
    """Return a copy of data that YAML can hold; raise ConfigError at `path` for anything else."""
    try:
        return _copy_plain(value, 0)
    except RecursionError:
        raise ConfigError.at(
            path, f"is nested too deeply: at most {MAX_DEPTH} levels are allowed"
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigError.at(path, f"cannot be saved as YAML: {error}") from None


def _copy_plain(value: Any, depth: int) -> Any:
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("a number cannot be NaN in a file")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping | list | tuple) and depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return {_copy_key(key): _copy_plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_plain(inner, depth + 1) for inner in value]
    # Enums of text or numbers, and other subclasses.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else to_plain(value)


def _copy_key(key: Any) -> str:
    """Return the key of a mapping as YAML writes it."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return repr(key)
    raise TypeError(f"keys must be strings, not {type(key).__name__}")


def is_scalar(value: Any) -> bool:
    """Return whether a value is a NumPy scalar, or a tensor or an array without dimensions."""
    return hasattr(value, "item") and getattr(value, "ndim", None) == 0


def to_plain(value: Any) -> Any:
    """Convert NumPy scalars and paths to what a config can hold.

    Raises TypeError for anything else.
    """
    if isinstance(value, PurePath):
        return str(value)
    if is_scalar(value):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
