"""The driver of a run: starts it, watches it, and keeps what it made."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.state import Display
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.experiment import Experiment, chosen_name
from orchestrator.config.load import checked_experiment, experiment_of, resumed_experiment, to_dict, to_yaml
from orchestrator.config.python_objects import code_of_main
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.engines.lifecycle import Lifecycle, failing
from orchestrator.engines.main_classes import with_classes_of_main
from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    chosen_address,
    connection_line,
    environment_values,
    local_resources,
    refuse_unless_fits,
    starts_ray,
)
from orchestrator.engines.session import Assignment
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.loop.weight_sources import find_for
from orchestrator.records.lease import Lease
from orchestrator.records.metadata import EngineName
from orchestrator.records.process import Process
from orchestrator.records.provenance import provenance
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import DEFAULT_STORAGE, ENDED, RunFolder, nothing_started, now
from orchestrator.runs.best import recording_best
from orchestrator.runs.continuation import take_up_predecessor
from orchestrator.runs.result import Run
from orchestrator.storage import Storage
from orchestrator.terminal.display import TerminalDisplay, say
from orchestrator.terminal.interrupts import Interrupts
from orchestrator.terminal.notebook import NotebookDisplay, in_notebook
from orchestrator.terminal.standstill_teller import StandstillTeller

if TYPE_CHECKING:
    from orchestrator.engines.engine import Engine

POLL_S = 0.2


def run(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    engine: EngineName | None = None,
    local: bool = False,
    address: str | None = None,
) -> Run:
    """Runs an experiment to its end and returns what it made.

    The `engine` is `train`, Ray Train, where nothing is said; `gang`, a process for each rank, without Ray Train, which
    starts sooner; or `in-process`, a single rank in this process, which is what `local` means.

    Raises UsageError where the name is taken or the machine is too small, before anything is started; RunError where
    the run failed. A run that was interrupted is returned with the status `interrupted`.
    """
    experiment = checked_experiment(experiment)
    if experiment.sweep is not None:
        raise UsageError("this experiment has a sweep section; use sweep (hookyard sweep)")
    engine = _chosen(engine, local)
    address = chosen_address(address, local=engine == "in-process")
    Storage(storage).reach()
    _refuse_what_cannot_be(experiment, engine, address)
    metadata = {
        **provenance(experiment.import_paths),
        "source": experiment.source,
        "tags": experiment.tags,
        "notes": experiment.notes,
        "engine": engine,
        "local": engine == "in-process",
        "seed": experiment.seed,
        "goes_on_from": experiment.source.goes_on_from and asdict(experiment.source.goes_on_from),
        "init": find_for(experiment),
    }
    folder = RunFolder(storage, chosen_name(experiment, name))
    folder.refuse_if_taken()
    with Lease(folder.storage) as lease:
        folder = RunFolder.create(storage, folder.name, to_yaml(experiment), code=code_of_main(to_dict(experiment)), **metadata)
        return _drive(folder, experiment, engine, address, lease)


def resume(
    path: str | Path, *, workers: int | None = None, address: str | None = None, take_over: bool = False, from_start: bool = False
) -> Run:
    """Goes on with a run that was interrupted, failed, or lost its driver, from its last whole checkpoint.

    With another number of `workers` where that is given; from then on it is the run's. With `from_start` its checkpoints
    are thrown away, and it begins anew. Raises UsageError where there is nothing to go on with, where it has checkpoints
    and none is whole, or where the run is still under way, or may be on another machine; `take_over` says it is not.
    """
    with nothing_started():
        folder = RunFolder.open(path)
        metadata = folder.metadata()
    if metadata.sweep:
        raise UsageError(f"{folder} is a sweep; go on with it with resume_sweep (hookyard resume)")
    with folder.lease(take_over=take_over) as lease:
        return go_on(folder, lease, workers=workers, address=address, from_start=from_start)


def go_on(folder: RunFolder, lease: Lease, *, workers: int | None, address: str | None, from_start: bool) -> Run:
    """As `resume`, of a run whose lease is had."""
    return _drive(folder, *_made_ready(folder, workers, address, from_start), lease)


@nothing_started()
def _made_ready(folder: RunFolder, workers: int | None, address: str | None, from_start: bool) -> tuple[Experiment, EngineName, str | None]:
    """Sees that a run can be gone on with, and writes down that it is; gives with what, its engine, and the address of a cluster."""
    metadata = folder.metadata()
    if metadata.status in ENDED:
        raise UsageError(f"{folder} has {metadata.status}; there is nothing to resume")
    experiment = experiment_to_resume(folder, workers)
    engine = metadata.engine or _chosen(None, metadata.local)
    address = chosen_address(address, local=engine == "in-process")
    _refuse_what_cannot_be(experiment, engine, address)
    if from_start and (before := experiment.source.goes_on_from):
        raise UsageError(f"{folder} went on from {before}; to begin from there again: hookyard run {before.run}@{before.checkpoint}")
    _check_checkpoints(folder, from_start)
    again = {"status": "running", "error": None, "stopped": [], "resumed": [*metadata.resumed, now()], "taken_up_by": None}
    folder.write_experiment(to_yaml(experiment), experiment.source)
    folder.update(**again, **asdict(Process.this()))
    return experiment, engine, address


def _check_checkpoints(folder: RunFolder, from_start: bool) -> None:
    """Clears the checkpoints where that is asked; else raises UsageError where there are some, and none to go on from."""
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    if from_start:
        return store.clear()
    store.recover()
    try:
        store.latest(hashed=False)
    except CheckpointError as error:
        reports = counted_reports(folder.reports(), folder.attempts())
        reached = f"its {len(reports)} reports, up to step {reports[-1].get('step')}" if reports else "what it had trained"
        raise UsageError(
            f"{error}\nNothing was started. {resume_command(folder)} --from-start begins anew; it throws away these checkpoints, and {reached}"
        ) from error
    return None


def experiment_to_resume(folder: RunFolder, workers: int | None = None) -> Experiment:
    """What a run or a sweep goes on with: what it was begun with, mended in its experiment.yaml or not, and another number
    of workers where that is given; raises ConfigError."""
    experiment = resumed_experiment(folder.source(), folder.experiment_text())
    if workers is None:
        return experiment
    alone = {"workers.strategy": "ddp"} if workers == 1 else {}
    return experiment_of(experiment.source.with_values({"workers.count": workers, **alone}))


def resume_command(folder: RunFolder) -> str:
    """What to type to go on with a run."""
    return f"hookyard resume {shlex.quote(str(folder))}"


def _chosen(engine: EngineName | None, local: bool) -> EngineName:
    if local and engine not in (None, "in-process"):
        raise UsageError(f"local is the engine in-process, and engine={engine} another one; say one of them")
    return "in-process" if local else engine or "train"


def _refuse_what_cannot_be(experiment: Experiment, engine: EngineName, address: str | None) -> None:
    workers = experiment.workers
    if engine == "gang" and workers.least < workers.most:
        raise UsageError(
            f"a gang is a fixed number of ranks, and workers.count is {workers.count}: say workers.count={workers.most}, "
            "or use the engine train, which makes do with fewer"
        )
    if engine == "in-process":
        from orchestrator.engines.in_process import device_of

        device_of(workers)
        return
    with_classes_of_main(experiment.source, address)
    if starts_ray(address):
        refuse_unless_fits(Resources.asked_by(workers), local_resources(), f"{experiment.name} with {workers.in_words('worker')}")


def _drive(folder: RunFolder, experiment: Experiment, engine: EngineName, address: str | None, lease: Lease) -> Run:
    source = experiment.source if engine == "in-process" else with_classes_of_main(experiment.source, address)
    assignment = Assignment(source, folder.location)
    how = resume_command(folder)
    with (
        recording_best(folder),
        failing(folder),
        _display(folder) as display,
        Interrupts(how) as interrupts,
        StandstillTeller(lambda: [folder], display, lambda: interrupts.asked),
    ):

        def asked() -> bool:
            lease.check()
            return interrupts.asked

        take_up_predecessor(folder, experiment)
        if before := experiment.source.goes_on_from:
            display.line(f"goes on from {before}")
        resolved = resolve(experiment.source)
        if engine == "in-process":
            from orchestrator.engines.in_process import InProcess

            workers = resolved.experiment.workers
            if workers.most > 1:
                display.line(f"local: one process instead of {workers.in_words('worker')}")
            Lifecycle(InProcess(workers, display=display, stop_asked=asked, end_standing=interrupts.fail), assignment, resolved).train()
        else:
            _on_ray(engine, assignment, resolved, display, asked, address)
    done = Run(folder)
    if done.status == "interrupted":
        say(f"Interrupted after a checkpoint. To go on: {how}")
    return done


def _display(folder: RunFolder) -> TerminalDisplay | NotebookDisplay:
    """What shows the run here: lines and bars on a terminal, a frame that lives in a notebook."""
    if not in_notebook():
        return TerminalDisplay(folder.storage)
    from orchestrator.terminal.live_frame import LiveFrame

    return NotebookDisplay(folder.storage, LiveFrame(folder))


def _on_ray(
    engine: EngineName,
    assignment: Assignment,
    resolved: ResolvedExperiment,
    display: Display,
    asked: Callable[[], bool],
    address: str | None,
) -> None:
    display.line(connection_line(address))
    experiment, workers = resolved.experiment, resolved.experiment.workers
    with Ray(address, environment=environment_values(experiment.environment) if address else None) as ray:
        from orchestrator.engines.mailbox import Mailbox, start_mailbox

        trained_by: Engine
        if engine == "gang":
            from orchestrator.engines.gang import Gang

            name, mailbox = start_mailbox(Mailbox)
            trained_by, restarts = Gang(workers, in_trial=False), experiment.max_failures
            display.line(f"training with a gang of {workers.in_words('rank')}")
        else:
            from orchestrator.engines.relay import Relay
            from orchestrator.engines.train_engine import TrainJobs

            name, mailbox = start_mailbox(Relay)
            trained_by, restarts = TrainJobs(workers, lean=address is None), 0  # Ray Train sees to them
            display.line(f"training with Ray Train on {workers.in_words('worker')}")

        def tell(line: str) -> None:
            mailbox.post.remote(("line", line))

        life = Lifecycle(trained_by, replace(assignment, mailbox=name), resolved, restarts=restarts, tell=tell)
        # In a thread of its own, so that this one hears signals.
        work = ThreadPoolExecutor(max_workers=1).submit(life.train)
        import orchestrator.stats.compaction  # noqa: F401  # which the end needs: the ranks take longer to start

        _watch(ray, mailbox, work, display, asked)


def _watch(ray: Any, mailbox: Any, work: Future[None], display: Display, asked: Callable[[], bool]) -> None:
    """Shows what rank 0 has to show until the work is over, and hands on a wish to stop; raises what the work raised."""
    calls: list[Any] = []
    over = False
    while not over:
        over = bool(wait([work], POLL_S).done)
        calls.append(mailbox.collect.remote(asked()))
        ready, calls = ray.wait(calls, num_returns=len(calls), timeout=5 if over else 2)
        for kind, *news in chain.from_iterable(_answer(ray, call) for call in ready):
            (display.line if kind == "line" else display.progress)(*news)
    work.result()


def _answer(ray: Any, call: Any) -> list[Any]:
    """What the mailbox held: nothing where it died, and is started again empty."""
    try:
        found: list[Any] = ray.get(call)
        return found
    except ray.exceptions.RayActorError:
        return []
