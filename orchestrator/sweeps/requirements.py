"""Requirements of a sweep: packages, resources, and room for its trials."""

from importlib.util import find_spec
from typing import Any

from orchestrator.disk.sweep_folder import open_sweep_folder
from orchestrator.engines.resources import Resources
from orchestrator.engines.script_definitions import check_main_definitions
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.search import EXTRA, OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.concurrent_trials import count_concurrent_trials
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.process.streams import print_line
from orchestrator.runs.launch_checks import check_environment, check_local_resources


def check_can_run(
    experiment: Experiment, settings: SweepSettings, *, local: bool, address: str | None
) -> None:
    """Raise UsageError if an extra or a resource of this machine is missing, or if a local sweep
    cannot have the scheduler."""
    check_environment(experiment)
    check_search(settings)
    if not local:
        check_main_definitions(experiment.source, address)
    check_local_resources(
        experiment.workers, f"each trial of {experiment.name}", address, local=local
    )
    if local:
        _check_local(settings)


def check_search(settings: SweepSettings) -> None:
    """Raise ConfigError if a package or a sweep that the search needs does not exist."""
    search = settings.search
    if not isinstance(search, OptunaSearch):
        return
    if find_spec("optuna") is None:
        raise ConfigError.at(
            "sweep.search", f"optuna needs the package optuna, which is not installed: {EXTRA}"
        )
    if search.earlier:
        try:
            open_sweep_folder(search.earlier)
        except UsageError as error:
            raise ConfigError.at("sweep.search.from", str(error)) from None


def _check_local(settings: SweepSettings) -> None:
    if settings.scheduler.waits_for_others:
        raise UsageError(
            f"{settings.scheduler.type} needs concurrent trials, and a local sweep runs one at a"
            " time; run it on Ray, or use fifo, asha, median or race"
        )
    if settings.max_concurrent:
        print_line(
            "sweep.max_concurrent: has no effect in a local sweep, which runs one trial at a time"
        )


def compute_concurrency(
    ray: Any, experiment: Experiment, settings: SweepSettings
) -> tuple[int, str]:
    """Return how many trials run at a time, and why. Raises UsageError if none fits."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    workers = experiment.workers
    qualifier = "at least " if workers.min_count < workers.max_count else ""
    explanation = (
        f"each needs {qualifier}{Resources.required_by(workers)};"
        f" the cluster has {_describe_resources(nodes, ['CPU', 'GPU', *workers.bundle])}"
    )
    max_concurrent = count_concurrent_trials(settings, count_trials(settings), workers, nodes)
    if max_concurrent < 1:
        raise UsageError(
            f"no trial fits: {explanation}, and each rank of a trial must fit on"
            " one node; reduce `workers`, or join a larger cluster"
        )
    return max_concurrent, explanation


def _describe_resources(nodes: list[dict[str, float]], names: list[str]) -> str:
    amounts = dict.fromkeys(names, 0.0)
    for node in nodes:
        for name in amounts:
            amounts[name] += node.get(name, 0)
    text = str(Resources(amounts))
    return text if len(nodes) == 1 else f"{text} on {len(nodes)} nodes"
