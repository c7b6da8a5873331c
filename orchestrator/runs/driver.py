"""The driver of a run: starts it, watches it, and keeps what it made."""

from __future__ import annotations

import shlex
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from orchestrator.config.experiment import Experiment, Workers
from orchestrator.config.load import experiment_of, taken_up, to_yaml
from orchestrator.engines.rank_failures import keep_traceback
from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    chosen_address,
    local_resources,
    passed_on,
    refuse_unless_fits,
    starts_ray,
    way_to_ray,
)
from orchestrator.engines.session import Assignment
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.records.provenance import captured
from orchestrator.records.run_folder import DEFAULT_STORAGE, ENDED, RunFolder, driver_identity, now
from orchestrator.runs.result import Run
from orchestrator.stats.tables import compact
from orchestrator.storage import Storage
from orchestrator.terminal.display import TerminalDisplay, say
from orchestrator.terminal.interrupts import Interrupts

POLL_S = 0.2


@dataclass
class Outcome:
    """How a run ended, as far as its workers said."""

    stopped: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def status(self) -> str:
        """The run's status."""
        if self.interrupted:
            return "interrupted"
        return "stopped" if self.stopped else "finished"


def run(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    local: bool = False,
    address: str | None = None,
) -> Run:
    """Runs an experiment to its end and returns what it made: on Ray Train workers, or with `local` in this process.

    Raises UsageError where the name is taken or the machine is too small, before anything is started; RunError where
    the run failed. A run that was interrupted is returned with the status `interrupted`.
    """
    if experiment.sweep is not None:
        raise UsageError("this experiment has a sweep section; use sweep (hookyard sweep)")
    address = chosen_address(address)
    Storage(storage).reach()
    if not local:
        _refuse_unless_fits(experiment, address)
    metadata = {
        **captured(Path(experiment.import_paths[0] if experiment.import_paths else ".")),
        "source": experiment.source,
        "local": local,
        "seed": experiment.seed,
    }
    folder = RunFolder.create(storage, name or experiment.name, to_yaml(experiment), **metadata)
    return _drive(folder, experiment, local, address)


def resume(path: str | Path, *, workers: int | None = None, address: str | None = None, take_over: bool = False) -> Run:
    """Goes on with a run that was interrupted, failed, or lost its driver, from its last whole checkpoint.

    With another number of `workers` where that is given; from then on it is the run's. Raises UsageError where there is
    nothing to go on with, or where the run is still under way, or may be on another machine; `take_over` says it is not.
    """
    folder = RunFolder.open(path)
    if folder.metadata().sweep:
        raise UsageError(f"{folder} is a sweep; go on with it with resume_sweep (hookyard resume)")
    folder.refuse_if_driven(take_over)
    metadata, address = folder.metadata(), chosen_address(address)
    if metadata.status in ENDED:
        raise UsageError(f"{folder} has {metadata.status}; there is nothing to resume")
    experiment = experiment_to_resume(folder, workers)
    if not metadata.local:
        _refuse_unless_fits(experiment, address)
    folder.storage.write("experiment.yaml", to_yaml(experiment))
    folder.update(status="running", source=experiment.source, error=None, resumed=[*metadata.resumed, now()], **driver_identity())
    return _drive(folder, experiment, metadata.local, address)


def experiment_to_resume(folder: RunFolder, workers: int | None = None) -> Experiment:
    """What a run or a sweep goes on with: what it was begun with, mended in its experiment.yaml or not, and another number
    of workers where that is given; raises ConfigError."""
    experiment = taken_up(folder.source(), folder.storage.read("experiment.yaml").decode())
    return experiment if workers is None else experiment_of(experiment.source.over({"workers.count": workers}))


def resume_command(folder: RunFolder) -> str:
    """What to type to go on with a run."""
    return f"hookyard resume {shlex.quote(str(folder))}"


def _refuse_unless_fits(experiment: Experiment, address: str | None) -> None:
    if starts_ray(address):
        workers = experiment.workers
        refuse_unless_fits(Resources.asked_by(workers), local_resources(), f"{experiment.name} with {workers.in_words('worker')}")


def _drive(folder: RunFolder, experiment: Experiment, local: bool, address: str | None) -> Run:
    assignment = Assignment(experiment.source, folder.location)
    try:
        with TerminalDisplay(folder.storage) as display, Interrupts(resume_command(folder)) as interrupts:
            if local:
                outcome = _in_process(assignment, experiment.workers, display, interrupts)
            else:
                outcome = _on_ray(assignment, experiment, display, interrupts, address)
    except BaseException as error:
        _end(folder, "failed", error=str(error) or type(error).__name__)
        keep_traceback(folder, error)
        if isinstance(error, HookyardError) or not isinstance(error, Exception):
            raise
        raise RunError(f"{type(error).__name__}: {error}") from error
    _end(folder, outcome.status, stopped=list(outcome.stopped))
    if outcome.interrupted:
        say(f"Interrupted after a checkpoint. To go on: {resume_command(folder)}")
    return Run(folder)


def _end(folder: RunFolder, status: str, **metadata: Any) -> None:
    if status in ENDED:
        compact(folder.storage, folder.attempts())
    folder.end(status, attempts=len(folder.attempts()), **metadata)


def _in_process(assignment: Assignment, workers: Workers, display: TerminalDisplay, interrupts: Interrupts) -> Outcome:
    from orchestrator.engines.in_process import run_in_process

    if workers.most > 1:
        display.line(f"local: one process instead of {workers.in_words('worker')}")
    last = run_in_process(assignment, display, lambda: interrupts.asked)
    return Outcome(last.stopped, last.interrupted) if last else Outcome()


def _on_ray(
    assignment: Assignment, experiment: Experiment, display: TerminalDisplay, interrupts: Interrupts, address: str | None
) -> Outcome:
    display.line(way_to_ray(address))
    with Ray(address, environment=passed_on(experiment.environment) if address else None) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from orchestrator.engines.mailbox import Mailbox
        from orchestrator.engines.train_worker import fit, train_on_worker

        name = f"hookyard-{uuid.uuid4().hex[:12]}"
        # Here, as a node that goes down would take along what is to be told of it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        mailbox = ray.remote(Mailbox).options(num_cpus=0, name=name, max_restarts=-1, scheduling_strategy=here).remote()
        display.line(f"training with Ray Train on {experiment.workers.in_words('worker')}")
        work = _Background(lambda: fit(train_on_worker, replace(assignment, mailbox=name), experiment, lean=address is None))
        outcome = _watch(ray, mailbox, work, display, interrupts)
        work.result()
    return outcome


class _Background:
    """A call in a thread of its own, so that the main thread hears signals; its error is raised by `result`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def over(self, timeout_s: float) -> bool:
        """Waits a little; whether the call has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> None:
        """Raises what the call raised."""
        if self._error is not None:
            raise self._error


def _watch(ray: Any, mailbox: Any, work: _Background, display: TerminalDisplay, interrupts: Interrupts) -> Outcome:
    """Shows what rank 0 has to show until the work is over, and hands on a wish to stop."""
    outcome, over = Outcome(), False
    asked: list[Any] = []
    while not over:
        over = work.over(POLL_S)
        asked.append(mailbox.collect.remote(interrupts.asked))
        ready, asked = ray.wait(asked, num_returns=len(asked), timeout=5 if over else 2)
        for kind, *news in chain.from_iterable(_answer(ray, call) for call in ready):
            if kind == "line":
                display.line(*news)
            elif kind == "progress":
                display.progress(*news)
            else:
                outcome = Outcome(tuple(news[0]), news[1])
    return outcome


def _answer(ray: Any, call: Any) -> list[Any]:
    """What the mailbox held: nothing where it died, and is started again empty."""
    try:
        found: list[Any] = ray.get(call)
        return found
    except ray.exceptions.RayActorError:
        return []
