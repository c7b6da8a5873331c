"""Starting a run. Runs in the driver."""

from dataclasses import replace
from pathlib import Path

from orchestrator.disk.if_exists import IfExists
from orchestrator.disk.metadata import EngineName, LaunchMetadata
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.run_folder import DEFAULT_STORAGE, RunFolder
from orchestrator.errors import UsageError
from orchestrator.experiment.load import check_experiment, to_dict, to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.runs.continued_checkpoint import ContinuedCheckpoint
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.launch import collect_launch_metadata, drive
from orchestrator.runs.launch_checks import check_can_run
from orchestrator.runs.result import Run
from orchestrator.runs.usage_hint import format_resume_command
from orchestrator.storage import Storage
from orchestrator.user_code.main_definitions import read_main_source


def run(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    engine: EngineName | None = None,
    local: bool = False,
    address: str | None = None,
    if_exists: IfExists = "error",
) -> Run:
    """Run an experiment to its end.

    Args:
        experiment: The experiment, from a file or created in Python.
        storage: Where runs are kept: a folder, or a URL of an object store.
        name: Name of the run; by default the experiment's.
        engine: `train` (Ray Train, the default), `gang` (a process for each rank, which starts
            sooner), or `in-process` (a single rank in this process).
        local: The same as `engine="in-process"`, which needs no Ray.
        address: A Ray cluster to join; by default RAY_ADDRESS, otherwise Ray starts on this
            machine.
        if_exists: What to do about a run of this name: `error` refuses, `number` takes NAME-2,
            NAME-3 and so on, and `replace` removes that run with all its files, unless it is
            running.

    Returns:
        The run. An interrupted one has the status `interrupted`.

    Raises:
        UsageError: If the name is taken or the machine is too small, before anything starts.
        RunError: If the run fails.

    Example:
        ```python
        experiment = load_experiment("spirals.yaml", ["epochs=5"])
        done = run(experiment, local=True, if_exists="number")
        done.metrics["val/accuracy"].max()
        ```
    """
    experiment = check_experiment(experiment)
    if experiment.sweep is not None:
        raise UsageError(
            f"{experiment.name} has a `sweep` section; use `hookyard sweep` (sweep() in Python)"
        )
    chosen = EngineChoice.make(engine, address, local=local)
    Storage(storage).reach()
    check_can_run(experiment, chosen)
    sources = _check_parent(experiment, chosen, Storage(storage))
    launch = _collect_metadata(experiment, chosen)
    if launch.init:
        sources.append(Storage(launch.init.path))

    named = RunFolder(storage, choose_run_name(name, experiment.name))
    with taking_name(named, if_exists, sources) as (free, lease):
        folder = create_run(
            storage,
            free.name,
            to_yaml(experiment),
            launch,
            source=experiment.source,
            code=read_main_source(to_dict(experiment)),
        )
        drive(folder, experiment, chosen, lease, resume_with=format_resume_command(folder))
    return Run(folder)


def _check_parent(experiment: Experiment, engine: EngineChoice, storage: Storage) -> list[Storage]:
    """Return the folder of the run that a new run continues, if any; raises UsageError if its
    checkpoint does not fit."""
    parent = experiment.source.continued_from
    if parent is None:
        return []
    folder = RunFolder(storage.at(parent.run))
    ContinuedCheckpoint.read(folder, parent.checkpoint).check_processes(experiment, engine.name)
    return [folder.storage]


def _collect_metadata(experiment: Experiment, engine: EngineChoice) -> LaunchMetadata:
    """Collect what is known of a new run before it begins."""
    return replace(
        collect_launch_metadata(experiment, engine),
        tags=experiment.tags,
        notes=experiment.notes,
        continued_from=experiment.source.continued_from,
    )
