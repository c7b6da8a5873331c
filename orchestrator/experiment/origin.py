"""What an experiment was made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.experiment.yaml.source import ExperimentSource


@dataclass
class Origin:
    """What an experiment was made of."""

    source: ExperimentSource
    """The experiment as written."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The values as Python code gave them; empty for an experiment of a file."""
