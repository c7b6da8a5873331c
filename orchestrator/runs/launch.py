"""Runs one experiment to its end on an engine, with a display. Used in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from hooks.loop_services import Display
from orchestrator.disk.initial_weights import describe_initial_weights
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import EngineName
from orchestrator.disk.provenance import collect_provenance
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment, EvaluationTarget
from orchestrator.engines.hang_reporter import HangReporter
from orchestrator.engines.lifecycle import Lifecycle, recording_failure
from orchestrator.engines.ray_connection import Ray, describe_connection
from orchestrator.engines.ray_environment import read_environment
from orchestrator.engines.script_classes import with_classes_of_main
from orchestrator.errors import UsageError, find_problems, raise_problems
from orchestrator.experiment.resolve import ResolvedExperiment, take_resolved
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.process.interrupts import Interrupts
from orchestrator.process.streams import print_line
from orchestrator.runs.alerts import Alerts
from orchestrator.runs.best import recording_best
from orchestrator.runs.continuation import copy_parent_checkpoint
from orchestrator.runs.display import open_display

if TYPE_CHECKING:
    from orchestrator.engines.run_gang import RunGang
    from orchestrator.engines.train_engine import TrainJobs

POLL_S = 0.2


def choose_engine(engine: EngineName | None, local: bool) -> EngineName:
    """Return the engine to use. Raises UsageError if `local` contradicts `engine`."""
    if local and engine not in (None, "in-process"):
        raise UsageError(f"--local means --engine in-process; remove --local or --engine {engine}")
    return "in-process" if local else engine or "train"


def collect_launch_metadata(experiment: Experiment, engine: EngineName) -> dict[str, Any]:
    """Collect the entries of `run.json` that are known before a run starts."""
    return {
        **collect_provenance(experiment.import_paths),
        "source": experiment.source,
        "engine": engine,
        "local": engine == "in-process",
        "seed": experiment.seed,
        "init": describe_initial_weights(experiment),
    }


def check_surroundings(experiment: Experiment) -> None:
    """Raise ConfigError if an environment variable is not set, or the initial weights do not
    exist."""
    raise_problems(
        chain(
            find_problems(check_environment, experiment),
            find_problems(describe_initial_weights, experiment),
        )
    )


def check_environment(experiment: Experiment) -> None:
    """Raise ConfigError if an environment variable that the experiment names is not set."""
    read_environment(experiment.environment)
    if experiment.notify:
        experiment.notify.read_url()


def check_can_run(experiment: Experiment, engine: EngineName, address: str | None) -> None:
    """Raise UsageError if the engine or this machine cannot run the experiment."""
    workers = experiment.workers
    check_environment(experiment)
    if engine == "gang" and workers.min_count < workers.max_count:
        raise UsageError(
            f"workers.count must be one number for --engine gang, got {workers.count}; or use --engine train"
        )
    if engine != "gang" and workers.spares:
        raise UsageError(
            f"workers.spares has no effect with --engine {engine}; use --engine gang, or set it to 0"
        )
    if engine != "in-process":
        with_classes_of_main(experiment.source, address)
    from orchestrator.engines.in_process import check_local_resources

    check_local_resources(
        workers,
        f"{experiment.name} with {workers.describe('worker')}",
        address,
        local=engine == "in-process",
    )


def drive(
    folder: RunFolder,
    experiment: Experiment,
    engine: EngineName,
    address: str | None,
    lease: Lease,
    *,
    resume_with: str,
    target: EvaluationTarget | None = None,
) -> None:
    """Train a run to its end, or evaluate its `target`; raises RunError. Prints `resume_with` after
    an interruption."""
    source = (
        experiment.source
        if engine == "in-process"
        else with_classes_of_main(experiment.source, address)
    )
    assignment = Assignment(source, folder.location, target=target)
    messages = [resume_with]
    if target:
        messages.append(f"The {target.noun} runs to its end.")
    with (
        Alerts(None if target else experiment.notify, folder) as alerts,
        recording_best(folder),
        recording_failure(folder),
        open_display(folder) as display,
        Interrupts(*messages) as interrupts,
        HangReporter(
            lambda: [folder],
            display,
            lambda: interrupts.requested,
            alerts.send_hang,
        ),
    ):

        def is_stop_requested() -> bool:
            lease.check()
            return interrupts.requested

        copy_parent_checkpoint(folder, experiment)
        if parent := experiment.source.continued_from:
            display.line(f"continues {parent}")
        resolved = take_resolved(experiment)
        if engine == "in-process":
            _drive_in_process(
                assignment, resolved, display, alerts, is_stop_requested, interrupts.fail
            )
        else:
            _drive_on_ray(engine, assignment, resolved, display, alerts, is_stop_requested, address)
    if folder.read_metadata().status == "interrupted":
        print_line(f"Interrupted after a checkpoint. To resume: {resume_with}")


def _drive_in_process(
    assignment: Assignment,
    resolved: ResolvedExperiment,
    display: Display,
    alerts: Alerts,
    is_stop_requested: Callable[[], bool],
    end_hung: Callable[[str], None],
) -> None:
    from orchestrator.engines.in_process import InProcess

    workers = resolved.experiment.workers
    if workers.max_count > 1:
        display.line(f"local: one process instead of {workers.describe('worker')}")
    trainer = InProcess(
        workers, display=display, stop_requested=is_stop_requested, end_hung=end_hung
    )
    Lifecycle(trainer, assignment, resolved).train(alerts.check_report)


def _drive_on_ray(
    engine: EngineName,
    assignment: Assignment,
    resolved: ResolvedExperiment,
    display: Display,
    alerts: Alerts,
    is_stop_requested: Callable[[], bool],
    address: str | None,
) -> None:
    display.line(describe_connection(address))
    experiment = resolved.experiment
    with Ray(address, environment=read_environment(experiment.environment)) as ray:
        from orchestrator.engines.mailbox import Mailbox, ReportQueue, start_mailbox
        from orchestrator.engines.preemption import PreemptionWatch, is_preempted

        name, mailbox = start_mailbox(Mailbox if engine == "gang" else ReportQueue)

        def show_line(line: str) -> None:
            mailbox.post.remote(("line", line))

        with _open_trainer(engine, experiment.workers, display, show_line, address) as trainer:
            watch = PreemptionWatch(trainer.nodes, show_line)
            lifecycle = Lifecycle(
                trainer,
                replace(assignment, mailbox=name),
                resolved,
                # Ray Train restarts workers itself.
                restarts=experiment.max_failures if engine == "gang" else 0,
                preemptions=experiment.max_preemptions,
                is_preempted=partial(is_preempted, is_stop_requested=is_stop_requested),
                show_line=show_line,
            )
            # In a thread, because only the main thread gets signals.
            work = ThreadPoolExecutor(max_workers=1).submit(lifecycle.train, alerts.check_report)
            import orchestrator.disk.rows.compaction  # needed at the end; imported while the ranks start
            import orchestrator.disk.rows.usage  # noqa: F401

            _show_until_done(
                ray, mailbox, work, display, lambda: is_stop_requested() or watch.is_warned()
            )


@contextmanager
def _open_trainer(
    engine: EngineName,
    workers: Workers,
    display: Display,
    show_line: Callable[[str], None],
    address: str | None,
) -> Iterator[RunGang | TrainJobs]:
    if engine == "gang":
        from orchestrator.engines.run_gang import RunGang

        with closing(RunGang(workers, show_line=show_line)) as gang:
            spares = f", with {workers.spares} spare" if workers.spares else ""
            display.line(f"training with a gang of {workers.describe('rank')}{spares}")
            yield gang
    else:
        from orchestrator.engines.train_engine import TrainJobs

        display.line(f"training with Ray Train on {workers.describe('worker')}")
        yield TrainJobs(workers, lean=address is None)


def _show_until_done(
    ray: Any,
    mailbox: Any,
    work: Future[None],
    display: Display,
    is_stop_requested: Callable[[], bool],
) -> None:
    """Show rank 0's messages and forward stop requests until the work is done; raises the work's
    error."""
    calls: list[Any] = []
    is_done = False
    while not is_done:
        is_done = bool(wait([work], POLL_S).done)
        calls.append(mailbox.collect.remote(is_stop_requested()))
        ready, calls = ray.wait(calls, num_returns=len(calls), timeout=5 if is_done else 2)
        for call in ready:
            # The mailbox's actor may have died and been restarted empty.
            with suppress(ray.exceptions.RayActorError):
                for kind, *content in ray.get(call):
                    show = display.line if kind == "line" else display.progress
                    show(*content)
    work.result()
