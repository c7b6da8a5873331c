"""Trains a run on Ray, with the engine `gang` or `train`. Used in the driver, once it has joined
Ray."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from functools import partial

from hooks.loop_services import Display
from orchestrator.engines.lifecycle import Lifecycle
from orchestrator.engines.mailbox import DriverMailbox, Mailbox
from orchestrator.engines.preemption import PreemptionWatch, is_preempted
from orchestrator.engines.report_queue import ReportQueue
from orchestrator.engines.run_gang import RunGang
from orchestrator.engines.script_definitions import pickle_main_definitions
from orchestrator.engines.train_engine import TrainJobs
from orchestrator.runs.active_run import ActiveRun
from orchestrator.runs.engine_choice import EngineChoice

POLL_S = 0.2
"""Seconds between two looks at rank 0's messages."""
_ANSWER_S = 2.0
"""Seconds to wait for the mailbox's answer."""
_LAST_ANSWER_S = 5.0
"""The same once training has ended, because no later answer has the last messages."""


def train_on_ray(run: ActiveRun, engine: EngineChoice) -> None:
    """Train a run to its end; raises RunError."""
    experiment = run.resolved.experiment
    workers = experiment.workers
    if engine.name == "gang":
        mailbox = DriverMailbox(Mailbox)
        with closing(RunGang(workers, show_line=mailbox.post_line)) as gang:
            spares = f", with {workers.spares} spare" if workers.spares else ""
            run.display.line(f"training with a gang of {workers.describe('rank')}{spares}")
            restarts = _read_limit(experiment.max_failures)
            _train(run, gang, mailbox, restarts=restarts)
    else:
        mailbox = DriverMailbox(ReportQueue)
        run.display.line(f"training with Ray Train on {workers.describe('worker')}")
        # A Ray that the driver has started ends with it.
        jobs = TrainJobs(workers, lean=engine.address is None)
        # Ray Train restarts workers itself.
        _train(run, jobs, mailbox, restarts=0)


def _read_limit(setting: int) -> float:
    """Return the limit in a setting, where -1 stands for infinity."""
    return math.inf if setting == -1 else setting


def _train(
    run: ActiveRun,
    trainer: RunGang | TrainJobs,
    mailbox: DriverMailbox,
    *,
    restarts: float,
) -> None:
    source = run.assignment.source
    source = replace(source, main_definitions=pickle_main_definitions(source))
    watch = PreemptionWatch(trainer.find_nodes, mailbox.post_line)
    lifecycle = Lifecycle(
        trainer,
        replace(run.assignment, source=source, mailbox=mailbox.name),
        run.resolved,
        restarts=restarts,
        preemptions=_read_limit(run.resolved.experiment.max_preemptions),
        is_preempted=partial(is_preempted, is_stop_requested=run.is_stop_requested),
        show_line=mailbox.post_line,
    )
    # In a thread, because only the main thread gets signals.
    work = ThreadPoolExecutor(max_workers=1).submit(lifecycle.train, run.alerts.check_report)
    _show_until_done(
        work, mailbox, run.display, lambda: run.is_stop_requested() or watch.is_warned()
    )


def _show_until_done(
    work: Future[None],
    mailbox: DriverMailbox,
    display: Display,
    should_stop: Callable[[], bool],
) -> None:
    """Show rank 0's messages and forward stop requests until the work is done; raises the work's
    error."""
    is_done = False
    while not is_done:
        is_done = bool(wait([work], POLL_S).done)
        timeout_s = _LAST_ANSWER_S if is_done else _ANSWER_S
        mailbox.show_messages(display, stop=should_stop(), timeout_s=timeout_s)
    work.result()
