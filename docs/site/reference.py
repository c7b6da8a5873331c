"""The parts of the reference that the build makes from the code, by the names that pages use."""

from collections.abc import Callable, Iterable, Iterator

from docs.site.columns import make_columns
from docs.site.commands import make_command_entries
from docs.site.fields import Entry, list_entries
from docs.site.hook_entries import make_hook_entries
from orchestrator.experiment.json_schema import make_experiment_schema
from orchestrator.experiment.optim.parameter_groups import Groups
from orchestrator.experiment.optim.scheduler_keys import PhaseBounds, WarmUp
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings

_BESIDE_ARGUMENTS = {"optimizer": (Groups,), "scheduler": (PhaseBounds, WarmUp)}
"""Sections whose keys stand among the arguments of a class of torch."""

_DEEPEST = 4
"""Level of the headings of keys in keys of keys."""


def make_experiment_keys() -> str:
    """Return the keys of an experiment, without those of a sweep."""
    return _join(_list_experiment_entries(), top="")


def make_sweep_keys() -> str:
    """Return the keys below `sweep`."""
    return _join(list_entries(SweepSettings, "sweep."), top="sweep.")


def _list_experiment_entries() -> Iterator[Entry]:
    base = make_experiment_schema()["properties"]["base"]
    yield Entry("base", "str | list[str]", "", base["description"])
    for entry in list_entries(Experiment):
        if entry.path.startswith("sweep."):
            continue
        yield entry
        # What a schema calls a component has these among the arguments of its class.
        for section in _BESIDE_ARGUMENTS.get(entry.path, ()):
            yield from list_entries(section, f"{entry.path}.")


def _join(entries: Iterable[Entry], top: str) -> str:
    return "\n".join(entry.to_markdown(_choose_level(entry, top)) for entry in entries)


def _choose_level(entry: Entry, top: str) -> int:
    """Return the level of an entry's heading: that of a key, or of a key in it."""
    path = entry.path.removeprefix(top)
    return min(2 + path.count(".") + path.count(": "), _DEEPEST)


GENERATORS: dict[str, Callable[[], str]] = {
    "columns": make_columns,
    "commands": make_command_entries,
    "experiment": make_experiment_keys,
    "hooks": make_hook_entries,
    "sweep": make_sweep_keys,
}
