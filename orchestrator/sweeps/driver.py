"""The driver of a sweep: hands trials to Ray Tune, shows how they fare, and keeps what they made."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.config.experiment import Experiment
from orchestrator.config.load import resolved, to_yaml
from orchestrator.config.space import count_trials, trials_at_once
from orchestrator.config.sweep import Population
from orchestrator.config.sweep import Sweep as Settings
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.runs.capture import captured
from orchestrator.runs.display import TerminalDisplay, say
from orchestrator.runs.environment import Ray, Resources, chosen_address, local_resources, refuse_unless_fits
from orchestrator.runs.folder import DEFAULT_STORAGE, ENDED, RunFolder, now
from orchestrator.runs.interrupts import Interrupts
from orchestrator.sweeps.folder import trial_folders
from orchestrator.sweeps.history import replay
from orchestrator.sweeps.result import Sweep

REPLAY = "replay.yaml"
"""A population's best trial as a single run."""


def sweep(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    local: bool = False,
    address: str | None = None,
) -> Sweep:
    """Runs the trials of a sweep and returns what they made. A trial that fails does not end the sweep.

    With `local` the trials run one after the other in this process, each as one rank; a scheduler that would stop some of them does not act.

    Raises UsageError where the name is taken, an extra is missing or not even one trial fits, before anything is
    started; RunError where the sweep itself failed.
    """
    settings = experiment.sweep
    if settings is None:
        raise UsageError("this experiment has no sweep section; use run (hookyard run)")
    address = chosen_address(address)
    _refuse_what_is_missing(settings, local)
    if address is None and not local:
        refuse_unless_fits(_asked(experiment), local_resources(), f"each trial of {experiment.name}")
    about = {
        **captured(Path(experiment.import_paths[0] if experiment.import_paths else ".")),
        "import_paths": list(experiment.import_paths),
        "sweep": {**_objective(settings), "trials": count_trials(settings)},
    }
    folder = RunFolder.create(storage, name or experiment.name, to_yaml(experiment), about)
    try:
        interrupted = _drive(folder, experiment, settings, local, address)
    except BaseException as error:
        folder.update(status="failed", ended=now(), error=str(error) or type(error).__name__)
        if isinstance(error, HookyardError) or not isinstance(error, Exception):
            raise
        raise RunError(f"{type(error).__name__}: {error}") from error
    if isinstance(settings.scheduler, Population):
        _write_replay(folder, experiment)
    folder.update(status="interrupted" if interrupted else "finished", ended=now())
    return Sweep(folder)


def _write_replay(folder: RunFolder, experiment: Experiment) -> None:
    """Keeps the best trial of a population as an experiment that changes its values when that trial's weights saw them."""
    try:
        best = replay(folder, experiment, Sweep(folder).best.name)
    except UsageError as error:
        return say(f"There is no {REPLAY}: {error}")
    return folder.storage.write(REPLAY, to_yaml(best))


def _refuse_what_is_missing(settings: Settings, local: bool) -> None:
    """Raises UsageError where an extra is not installed, or a population would have to live in one process."""
    needed = {"optuna": settings.search == "optuna", "sklearn": settings.scheduler.type == "pb2"}
    for package, extra in (("optuna", "optuna"), ("sklearn", "pb2")):
        if needed[package] and find_spec(package) is None:
            raise UsageError(f"this sweep needs the package {package}, which is not installed: pip install 'hookyard[{extra}]'")
    if local and isinstance(settings.scheduler, Population):
        raise UsageError(
            f"the trials of {settings.scheduler.type} live side by side, and in one process they run one after the other. "
            "Leave out --local, or say sweep.scheduler=fifo"
        )


def _objective(settings: Settings) -> dict[str, Any]:
    """What trials are judged by; with several metrics the first, and all of them."""
    metric, mode = settings.objectives[0]
    return {"metric": metric, "mode": mode, "objectives": settings.objectives}


def _asked(experiment: Experiment) -> Resources:
    workers = experiment.workers
    return Resources(workers.count * workers.cpus, workers.count if workers.gpu else 0)


def _drive(folder: RunFolder, experiment: Experiment, settings: Settings, local: bool, address: str | None) -> bool:
    """Runs the sweep; True where it was interrupted."""
    # Tune would take Ctrl-C for itself.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    how = f"its finished trials are kept in {folder}"
    with TerminalDisplay(folder.storage) as display, Interrupts(how) as interrupts:
        if local:
            from orchestrator.sweeps.inprocess import run_trials

            watcher = Watcher(display, settings, count_trials(settings))
            run_trials(experiment, settings, str(folder), watcher, lambda: interrupts.asked)
            return interrupts.asked
        display.line(f"joining Ray at {address}" if address else "starting Ray on this machine")
        with Ray(address) as ray:
            from orchestrator.sweeps.launch import launch

            at_once = _concurrency(ray, experiment, settings)
            total = count_trials(settings)
            display.line(
                f"{total} trials of {experiment.workers.count} rank{'s' if experiment.workers.count > 1 else ''}, {at_once} at a time"
            )
            launch(
                resolved(experiment),
                experiment.import_paths,
                settings,
                experiment.workers,
                str(folder),
                at_once,
                watcher=Watcher(display, settings, total),
                stop_asked=lambda: interrupts.asked,
            )
        if interrupts.asked:
            say(f"Interrupted: {how}")
        return interrupts.asked


def _concurrency(ray: Any, experiment: Experiment, settings: Settings) -> int:
    present = ray.cluster_resources()
    asked = _asked(experiment)
    at_once = trials_at_once(settings, count_trials(settings), {"CPU": asked.cpus, "GPU": asked.gpus}, present)
    if at_once < 1:
        has = Resources(present.get("CPU", 0), present.get("GPU", 0))
        raise UsageError(f"each trial asks for {asked}, the cluster has {has}: not even one fits")
    return at_once


class Watcher:
    """Tells how the trials fare: a line for each that ends, a bar for all. Driver."""

    def __init__(self, display: TerminalDisplay, settings: Settings, total: int) -> None:
        self._display, self._total = display, total
        self._metric, self._mode = settings.objectives[0]
        self._best = -math.inf if self._mode == "max" else math.inf
        self._own: dict[str, float] = {}
        self._ended = 0

    def reported(self, trial: str, metrics: dict[str, Any]) -> None:
        """A trial has reported."""
        value = metrics[self._metric]
        self._own[trial] = self._better(self._own.get(trial, value), value)
        self._best = self._better(self._best, value)
        self._display.progress("trials", self._ended, self._total, f"best {self._metric} {self._best:.4g}")

    def ended(self, trial: str, values: dict[str, Any], error: str | None = None) -> None:
        """A trial is over."""
        self._ended += 1
        chosen = " ".join(f"{path}={_short(value)}" for path, value in values.items())
        reached = f"failed: {error}" if error else f"{self._metric} {self._own.get(trial, math.nan):.4g}"
        self._display.line(f"{trial} [{self._ended}/{self._total}] {chosen}: {reached}")
        self._display.progress("trials", self._ended, self._total, f"best {self._metric} {self._best:.4g}")

    def _better(self, one: float, other: float) -> float:
        return max(one, other) if self._mode == "max" else min(one, other)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def failed_trials(outcome: Sweep) -> int:
    """How many trials of a sweep that is over failed, or died without a word."""
    return sum(folder.about()["status"] not in (*ENDED, "interrupted") for folder in trial_folders(outcome.folder))
