"""A run from its folder to its end: on an engine, shown and watched over. Driver."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from hooks.state import Display
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.engines.lifecycle import Lifecycle, failing
from orchestrator.engines.main_classes import with_classes_of_main
from orchestrator.engines.ray_environment import Ray, connection_line, environment_values
from orchestrator.engines.session import Assignment, Subject
from orchestrator.errors import UsageError
from orchestrator.records.lease import Lease
from orchestrator.records.metadata import EngineName
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import RunFolder
from orchestrator.runs.best import recording_best
from orchestrator.runs.continuation import copy_parent_checkpoint
from orchestrator.terminal.display import TerminalDisplay, say
from orchestrator.terminal.hang_reporter import HangReporter
from orchestrator.terminal.interrupts import Interrupts
from orchestrator.terminal.notebook import NotebookDisplay, in_notebook

if TYPE_CHECKING:
    from orchestrator.engines.engine import Engine

POLL_S = 0.2


def chosen_engine(engine: EngineName | None, local: bool) -> EngineName:
    """The engine that is asked for; raises UsageError where two are."""
    if local and engine not in (None, "in-process"):
        raise UsageError(f"local is the engine in-process, and engine={engine} another one; say one of them")
    return "in-process" if local else engine or "train"


def refuse_what_cannot_be(experiment: Experiment, engine: EngineName, address: str | None) -> None:
    """Raises UsageError where the engine or this machine cannot do what an experiment asks of it."""
    workers = experiment.workers
    if engine == "gang" and workers.min_count < workers.max_count:
        raise UsageError(
            f"a gang is a fixed number of ranks, and workers.count is {workers.count}: say"
            f" workers.count={workers.max_count}, or use the engine train, which makes do with fewer"
        )
    if engine != "in-process":
        with_classes_of_main(experiment.source, address)
    from orchestrator.engines.in_process import refuse_what_is_not_here

    refuse_what_is_not_here(
        workers, f"{experiment.name} with {workers.describe('worker')}", address, local=engine == "in-process"
    )


def drive(
    folder: RunFolder,
    experiment: Experiment,
    engine: EngineName,
    address: str | None,
    lease: Lease,
    *,
    how_to_go_on: str,
    subject: Subject | None = None,
) -> None:
    """Trains a run that is written down to its end, or evaluates its `subject`; raises RunError where that fails.
    `how_to_go_on` is what to type where it is interrupted."""
    source = experiment.source if engine == "in-process" else with_classes_of_main(experiment.source, address)
    assignment = Assignment(source, folder.location, subject=subject)
    words = [how_to_go_on, "The evaluation goes on to its end."] if subject else [how_to_go_on]
    with (
        recording_best(folder),
        failing(folder),
        _display(folder) as display,
        Interrupts(*words) as interrupts,
        HangReporter(lambda: [folder], display, lambda: interrupts.requested),
    ):

        def asked() -> bool:
            lease.check()
            return interrupts.requested

        copy_parent_checkpoint(folder, experiment)
        if before := experiment.source.continued_from:
            display.line(f"goes on from {before}")
        resolved = resolve(experiment.source)
        if engine == "in-process":
            from orchestrator.engines.in_process import InProcess

            workers = resolved.experiment.workers
            if workers.max_count > 1:
                display.line(f"local: one process instead of {workers.describe('worker')}")
            Lifecycle(
                InProcess(workers, display=display, stop_asked=asked, end_hung=interrupts.fail),
                assignment,
                resolved,
            ).train()
        else:
            _on_ray(engine, assignment, resolved, display, asked, address)
    if status_of(folder) == "interrupted":
        say(f"Interrupted after a checkpoint. To go on: {how_to_go_on}")


def _display(folder: RunFolder) -> TerminalDisplay | NotebookDisplay:
    """What shows the run here: lines and bars on a terminal, a frame that lives in a notebook."""
    if not in_notebook():
        return TerminalDisplay(folder.storage)
    from orchestrator.terminal.frames import LiveFrame

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
            display.line(f"training with a gang of {workers.describe('rank')}")
        else:
            from orchestrator.engines.report_queue import ReportQueue
            from orchestrator.engines.train_engine import TrainJobs

            name, mailbox = start_mailbox(ReportQueue)
            trained_by, restarts = TrainJobs(workers, lean=address is None), 0  # Ray Train sees to them
            display.line(f"training with Ray Train on {workers.describe('worker')}")

        def tell(line: str) -> None:
            mailbox.post.remote(("line", line))

        lifecycle = Lifecycle(trained_by, replace(assignment, mailbox=name), resolved, restarts=restarts, tell=tell)
        # In a thread of its own, so that this one hears signals.
        work = ThreadPoolExecutor(max_workers=1).submit(lifecycle.train)
        import orchestrator.stats.write.compaction  # noqa: F401  # which the end needs: the ranks take longer to start

        _watch(ray, mailbox, work, display, asked)


def _watch(ray: Any, mailbox: Any, work: Future[None], display: Display, asked: Callable[[], bool]) -> None:
    """Shows what rank 0 has to show until the work is over, and hands on a wish to stop; raises what the work
    raised."""
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
