"""Runs the trials of a sweep to their end, under Ray Tune or in this process, with a display. Used
in the driver."""

import os
from collections.abc import Mapping

from hooks.loop_services import Display
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.failure_record import recording_failure
from orchestrator.engines.hang_reporter import HangReporter
from orchestrator.engines.ray_connection import Ray, describe_connection
from orchestrator.engines.ray_environment import read_environment
from orchestrator.errors import MetricMissing
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.process.interrupts import Interrupts
from orchestrator.process.streams import print_line
from orchestrator.runs.alerts import Alerts
from orchestrator.runs.display import open_display
from orchestrator.runs.driver import format_resume_command
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.earlier_attempts import compute_seconds_used
from orchestrator.sweeps.end_record import record_end
from orchestrator.sweeps.requirements import compute_concurrency
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.choice import make_search
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.sweeps.sweep_progress import SweepProgress
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count

_NOTE_ON_RAY = (
    "Each trial ends at its next report; `hookyard resume` continues it from its newest checkpoint."
)
"""A trial in this process saves a checkpoint after its current step instead, as a single run does."""


def run_trials(
    folder: RunFolder,
    experiment: Experiment,
    previous: Mapping[int, TrialRecord],
    address: str | None,
    lease: Lease,
) -> Sweep:
    """Run the remaining trials to their end, and record that of the sweep.

    `previous` are the trials of earlier attempts, by number. Raises RunError if the sweep fails.
    """
    assert experiment.sweep is not None
    # Alerts tell the end as it is recorded.
    with Alerts(experiment.notify, folder) as alerts:
        is_interrupted = _run_remaining(folder, experiment, previous, address, lease, alerts)
        return record_end(folder, experiment.sweep, interrupted=is_interrupted)


def _run_remaining(
    folder: RunFolder,
    experiment: Experiment,
    previous: Mapping[int, TrialRecord],
    address: str | None,
    lease: Lease,
    alerts: Alerts,
) -> bool:
    """Run the remaining trials; return whether they were interrupted."""
    metadata = folder.read_metadata()
    command = format_resume_command(folder)
    texts = (command,) if metadata.local else (command, _NOTE_ON_RAY)
    with (
        recording_failure(folder),
        open_display(folder, is_sweep=True) as display,
        Interrupts(*texts) as interrupts,
    ):

        def is_stop_requested() -> bool:
            lease.check()
            return interrupts.requested

        end = SweepEnd(_start_budget(experiment, metadata, previous), is_stop_requested)
        running = make_running_sweep(
            experiment, folder, previous, display, alerts, end, fail_fast=metadata.fail_fast
        )
        hang_reporter = HangReporter(
            running.active_trials,
            display,
            lambda: interrupts.requested,
            alerts.send_hang,
        )
        if metadata.local:
            _run_in_process(running, interrupts, hang_reporter)
        else:
            _run_on_ray(running, address, display, hang_reporter)
            if interrupts.requested:
                print_line(f"Interrupted. To continue: {command}")
        if end.metric_missing:
            raise MetricMissing(end.metric_missing)
    return interrupts.requested


def make_running_sweep(
    experiment: Experiment,
    folder: RunFolder,
    previous: Mapping[int, TrialRecord],
    display: Display,
    alerts: Alerts,
    end: SweepEnd,
    *,
    fail_fast: bool = False,
) -> RunningSweep:
    """Make the search, the rules, the index and the progress of a sweep, which continue those of
    earlier attempts."""
    settings = experiment.sweep
    assert settings is not None
    search = make_search(experiment, previous, display.line)
    rules = StoppingRules(settings, search, end.budget)
    rules.replay(previous)
    return RunningSweep(
        experiment=experiment,
        folder=folder,
        previous=previous,
        search=search,
        rules=rules,
        index=TrialIndex(folder, settings.objectives),
        progress=SweepProgress(display, settings, previous),
        alerts=alerts,
        end=end,
        fail_fast=fail_fast,
    )


def _start_budget(
    experiment: Experiment, metadata: RunMetadata, previous: Mapping[int, TrialRecord]
) -> BudgetUse:
    assert experiment.sweep is not None
    return BudgetUse(
        experiment.sweep.budget,
        ranks=1 if metadata.local else experiment.workers.max_count,
        seconds_used=compute_seconds_used(metadata, previous),
    )


def _run_in_process(
    sweep: RunningSweep, interrupts: Interrupts, hang_reporter: HangReporter
) -> None:
    """Run the remaining trials one after the other."""
    from orchestrator.sweeps.in_process import SequentialTrials

    with hang_reporter:
        SequentialTrials(sweep, interrupts.fail).run()


def _run_on_ray(
    sweep: RunningSweep, address: str | None, display: Display, hang_reporter: HangReporter
) -> None:
    """Run the remaining trials under Ray Tune, as many at a time as fit."""
    # Tune would handle Ctrl-C itself.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    experiment = sweep.experiment
    display.line(describe_connection(address))
    with Ray(address, environment=read_environment(experiment.environment)) as ray:
        from orchestrator.sweeps.tune.launch import launch

        max_concurrent, explanation = compute_concurrency(ray, experiment, sweep.settings)
        count = len(list_remaining_trials(sweep.settings, sweep.previous))
        trials = format_count(count, "remaining trial" if sweep.previous else "trial")
        display.line(
            f"{trials} of {experiment.workers.describe('rank')},"
            f" {max_concurrent} at a time: {explanation}"
        )
        with hang_reporter:
            launch(sweep, max_concurrent)
