"""The experiment of a run: `experiment.yaml`, resolved, which is read without its classes, and
`source.json`, as it was written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.disk.lease import check_lease
from orchestrator.errors import MISSING, ConfigError, DamagedFile
from orchestrator.experiment.yaml.reader import load_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.validation import check_mapping, validate

EXPERIMENT_FILE = "experiment.yaml"
SOURCE_FILE = "source.json"
ADVICE = {
    EXPERIMENT_FILE: "Restore it from a backup, or fix it by hand",
    SOURCE_FILE: (
        "Restore it from a backup, or delete it: then `hookyard resume` reads experiment.yaml"
    ),
}
"""Advice for each damaged file."""


@dataclass(frozen=True)
class _Experiment:
    """The fields that readers use, whose types are checked. The others may be those of any version."""

    epochs: int | None = None
    steps: int | None = None
    accumulate: int | str | None = None
    batch_size: int | None = None
    upload_every: float | None = None
    hooks: Mapping[str, Mapping[str, Any] | bool | None] | None = None
    sweep: Mapping[str, Any] | None = None


def parse_experiment(text: str) -> dict[str, Any]:
    """Return the experiment as plain data; raises ConfigError or ValueError."""
    data = load_yaml(text, EXPERIMENT_FILE)
    if data is None:
        raise ValueError("it is empty")
    validate(data, _Experiment)
    return check_mapping(data)


def write_experiment(run: Storage, text: str, source: ExperimentSource | None) -> None:
    """Write the resolved experiment of a run, for people to read, and its source, for resuming.

    Raises LeaseLost.
    """
    check_lease(run.path)
    run.write(EXPERIMENT_FILE, text)
    if source is not None:
        write_json(run, SOURCE_FILE, source.record())


def read_experiment(run: Storage) -> dict[str, Any]:
    """Return the resolved experiment; raises DamagedFile."""
    try:
        return parse_experiment(read_experiment_text(run))
    except (ConfigError, ValueError) as error:
        raise _make_error(run, str(error)) from error


def read_experiment_text(run: Storage) -> str:
    """Return the text of `experiment.yaml`; raises DamagedFile."""
    try:
        return run.read(EXPERIMENT_FILE).decode()
    except FileNotFoundError:
        raise _make_error(run, MISSING) from None
    except UnicodeDecodeError as error:
        raise _make_error(run, str(error)) from None


def read_source(run: Storage) -> ExperimentSource:
    """Return the experiment as written; without `source.json`, the resolved experiment. Raises
    DamagedFile."""
    try:
        return read_json(run, SOURCE_FILE, ExperimentSource.from_record, ADVICE[SOURCE_FILE])
    except FileNotFoundError:
        return ExperimentSource.from_data(read_experiment(run))


def _make_error(run: Storage, reason: str) -> DamagedFile:
    return DamagedFile(str(run / EXPERIMENT_FILE), reason, ADVICE[EXPERIMENT_FILE])
