"""The content of `experiment.yaml`, the resolved experiment of a run, read without its classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.experiment.yaml.reader import load_yaml
from orchestrator.storage.validation import check_mapping, validate


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
    data = load_yaml(text, "experiment.yaml")
    if data is None:
        raise ValueError("it is empty")
    validate(data, _Experiment)
    return check_mapping(data)
