"""The experiment of a run as an attempt trained it, made importable in this process."""

from pathlib import Path

from hooks.import_path import extend_import_path
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.resolve import ResolvedExperiment, resolve


def resolve_attempt(folder: RunFolder, attempt: Attempt) -> ResolvedExperiment:
    """Return a run's experiment with the data order of an attempt, and add the folders of its code
    to `sys.path`; raises UsageError if it cannot be built here."""
    source = folder.read_source()
    extend_import_path([*source.import_paths, Path.cwd()])
    if attempt.order:
        source = source.with_values(attempt.order.values)
    try:
        return resolve(source)
    except ConfigError as error:
        raise UsageError(
            f"{folder} cannot be repeated, since its task or a hook cannot be built: {error}"
        ) from None
