"""An experiment as written, before defaults are filled in."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.experiment.yaml.origins import ParentCheckpoint
from orchestrator.experiment.yaml.plain_values import to_plain_data
from orchestrator.storage.validation import check_mapping, validate


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
    main_definitions: bytes | None = None
    """Pickled classes and functions of a script or a notebook; sent to other processes, never written to a
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
        optional = ("continued_from", "main_definitions")
        present = check_mapping(record).keys() | set(optional)
        missing = [field.name for field in fields(cls) if field.name not in present]
        if missing:
            raise ValueError(f"it has no `{missing[0]}`")
        return validate(record, cls)

    def record(self) -> dict[str, Any]:
        """Return the part that a run keeps, as JSON data."""
        return {name: value for name, value in asdict(self).items() if name != "main_definitions"}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return the source with more values over it.

        Raises ConfigError for values that YAML cannot hold.
        """
        return replace(self, values=(*self.values, *to_plain_data(values).items()))

    def without_sweep(self) -> Self:
        """Return the source of the experiment that the sweep varies."""
        written = {key: value for key, value in self.written.items() if key != "sweep"}
        values = tuple(
            (path, value) for path, value in self.values if path.partition(".")[0] != "sweep"
        )
        return replace(self, written=written, values=values)

    def merge(self) -> tuple[dict[str, Any], list[Problem]]:
        """Return the file with all values set, and the problems of paths that cannot be set."""
        problems: list[Problem] = []
        data: dict[str, Any] = dict(self.written)
        for path, value in self.values:
            data = collect_problems(problems, with_value, data, path, value) or data
        return data, problems
