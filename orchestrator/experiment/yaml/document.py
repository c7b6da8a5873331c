"""Plain data of a file, and where each of its keys stands."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.errors import Problem
from orchestrator.experiment.yaml.dotted_paths import list_prefixes


class Location(NamedTuple):
    """File and line of a key, or the override that set it."""

    file: str
    line: int | None = None


@dataclass
class Document:
    """Plain data, the location of each dotted path, and the problems of the text itself."""

    data: dict[str, Any]
    locations: dict[str, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    """The overrides, as locations quote them."""

    def find_location(self, path: str) -> Location | None:
        """Return the location of a path, or of its nearest parent that has one."""
        while path and path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations.get(path)

    def locate(self, problem: Problem) -> Problem:
        """Add file and line to a problem that has none, where they are known."""
        location = self.find_location(problem.path)
        if problem.file or location is None:
            return problem
        return replace(problem, file=location.file, line=location.line)

    def sort(self, problems: Iterable[Problem]) -> list[Problem]:
        """Locate problems and sort them by file and line; those of overrides come last."""
        order = {where: number for number, where in enumerate(self.overrides, 1)}

        def get_place(problem: Problem) -> tuple[int, str, int]:
            file = problem.file or ""
            return order.get(file, 0), file, problem.line or 0

        return sorted(map(self.locate, problems), key=get_place)

    def forget(self, paths: Collection[str]) -> None:
        """Drop the locations of `paths` and of everything below them."""
        forgotten = set(paths)
        self.locations = {
            key: location
            for key, location in self.locations.items()
            if forgotten.isdisjoint(list_prefixes(key))
        }
