"""What `hookyard submit` sends to a Ray cluster or to Slurm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from orchestrator.errors import UsageError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.storage import without_credentials


@dataclass(frozen=True)
class Submission:
    """A run or a sweep to submit, as the command line asks for it."""

    experiment: Experiment
    config: Path
    overrides: Sequence[str]
    storage: str
    name: str

    @classmethod
    def load(cls, config: Path, overrides: Sequence[str], storage: str, name: str | None) -> Self:
        """Load the experiment, and check the name of its run; raises ConfigError or UsageError."""
        experiment = load_experiment(config, overrides)
        return cls(experiment, config, overrides, storage, choose_run_name(name, experiment.name))

    def list_arguments(self, config: str, storage: str) -> list[str]:
        """Return the arguments of `hookyard` that run the experiment, with a file and a storage as
        the job sees them."""
        verb = "run" if self.experiment.sweep is None else "sweep"
        return [verb, config, *self.overrides, "--storage", storage, "--name", self.name]


def check_storage(storage: str) -> None:
    """Raise UsageError for a storage that contains keys."""
    if without_credentials(storage) != storage:
        raise UsageError(
            f"storage {without_credentials(storage)} contains keys, which everyone on the cluster "
            "could read; give the nodes a role, or list variables such as AWS_ACCESS_KEY_ID in "
            "`environment`"
        )
