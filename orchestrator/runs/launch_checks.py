"""Checks of what surrounds an experiment before it starts: environment variables, initial weights,
the engine and this machine. Used in the driver."""

from itertools import chain

from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.engines.device import find_device
from orchestrator.engines.local_resources import find_local_resources
from orchestrator.engines.ray_connection import needs_start
from orchestrator.engines.ray_environment import read_environment
from orchestrator.engines.resources import Resources
from orchestrator.engines.script_definitions import check_main_definitions
from orchestrator.errors import UsageError, find_problems, raise_problems
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.runs.engine_choice import EngineChoice


def check_surroundings(experiment: Experiment) -> None:
    """Raise ConfigError if an environment variable is not set, or the initial weights do not
    exist."""
    raise_problems(
        chain(
            find_problems(check_environment, experiment),
            find_problems(find_initial_weights, experiment),
        )
    )


def check_environment(experiment: Experiment) -> None:
    """Raise ConfigError if an environment variable that the experiment names is not set."""
    read_environment(experiment.environment)
    if experiment.notify:
        experiment.notify.read_url()


def check_can_run(experiment: Experiment, engine: EngineChoice) -> None:
    """Raise UsageError if the engine or this machine cannot run the experiment."""
    workers = experiment.workers
    check_environment(experiment)
    if engine.name == "gang" and workers.min_count < workers.max_count:
        raise UsageError(
            f"workers.count must be one number for the engine gang, got {workers.count}; or use the engine train"
        )
    if engine.name != "gang" and workers.spares:
        raise UsageError(
            f"workers.spares has no effect with the engine {engine.name}; use the engine gang, or set it to 0"
        )
    if not engine.is_local:
        check_main_definitions(experiment.source, engine.address)
    check_local_resources(
        workers,
        f"{experiment.name} with {workers.describe('worker')}",
        engine.address,
        local=engine.is_local,
    )


def check_local_resources(workers: Workers, what: str, address: str | None, *, local: bool) -> None:
    """Raise UsageError if the ranks train on this machine and it lacks a resource or a usable GPU.

    `what` says in the message what needs the resources. With `local`, the only rank is in this
    process, whatever `workers.count` is.
    """
    if local:
        find_device(workers)
    elif needs_start(address):
        required = Resources.required_by(workers)
        present = find_local_resources()
        if required.find_shortages(present):
            raise UsageError(
                f"{what} needs {required}, but this machine has {present}; reduce `workers`, or join a cluster"
            )
        find_device(workers)
