"""Starting a sweep. Runs in the driver."""

from pathlib import Path

from orchestrator.disk.if_exists import IfExists
from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.disk.metadata import LaunchMetadata
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.provenance import collect_provenance
from orchestrator.disk.run_folder import DEFAULT_STORAGE, RunFolder
from orchestrator.engines.ray_connection import choose_address
from orchestrator.errors import UsageError
from orchestrator.experiment.load import check_experiment, to_dict, to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.storage import Storage
from orchestrator.sweeps.requirements import check_can_run
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.run_trials import run_trials
from orchestrator.sweeps.stored_settings import summarize_settings
from orchestrator.user_code.main_definitions import read_main_source


def sweep(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    local: bool = False,
    address: str | None = None,
    fail_fast: bool = False,
    if_exists: IfExists = "error",
) -> Sweep:
    """Run the trials of a sweep.

    Args:
        experiment: An experiment with a `sweep`.
        storage: Where runs are kept: a folder, or a URL of an object store.
        name: Name of the sweep; by default the experiment's.
        local: Run the trials one after the other in this process, with one rank each and without
            Ray.
        address: A Ray cluster to join, as in `run`.
        fail_fast: End the sweep when a trial fails; by default the others continue.
        if_exists: What to do about a sweep of this name, as in `run`.

    Returns:
        The sweep, with its trials as tables and runs.

    Raises:
        UsageError: If the name is taken, an extra is missing, or no trial fits on the cluster.
        RunError: If the sweep itself failed.

    Example:
        ```python
        experiment = load_experiment("spirals_sweep.yaml", ["epochs=2"])
        done = sweep(experiment, local=True, if_exists="number")
        done.best.load()
        ```
    """
    experiment = check_experiment(experiment)
    settings = _get_settings(experiment)
    address = choose_address(address, local=local)
    Storage(storage).reach()
    check_can_run(experiment, settings, local=local, address=address)
    init = find_initial_weights(experiment)  # raises ConfigError before a trial starts
    launch = LaunchMetadata(
        provenance=collect_provenance(experiment.import_paths),
        tags=experiment.tags,
        notes=experiment.notes,
        local=local,
        fail_fast=fail_fast,
        sweep=summarize_settings(settings),
    )

    wanted = RunFolder(storage, choose_run_name(name, experiment.name))
    read_folders = [Storage(init.path)] if init else []
    with taking_name(wanted, if_exists, read_folders) as (folder, lease):
        folder = create_run(
            storage,
            folder.name,
            to_yaml(experiment),
            launch,
            source=experiment.source,
            code=read_main_source(to_dict(experiment)),
        )
        return run_trials(folder, experiment, {}, address, lease)


def _get_settings(experiment: Experiment) -> SweepSettings:
    """Return the sweep of an experiment; raises UsageError if there is none that can start."""
    if experiment.sweep is None:
        raise UsageError(
            f"{experiment.name} has no `sweep` section; add one, or use `hookyard run` (run() in"
            " Python)"
        )
    if experiment.source.continued_from:
        raise UsageError(
            f"a sweep cannot continue from {experiment.source.continued_from}; set init.from"
            " instead"
        )
    return experiment.sweep
