"""Runs the trials of a sweep to their end, in this process or on Ray, with a display. Used in the
driver."""

from collections.abc import Mapping

from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.failure_record import recording_failure
from orchestrator.engines.hang_reporter import HangReporter
from orchestrator.errors import MetricMissing
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.process.interrupts import Interrupts
from orchestrator.process.streams import print_line
from orchestrator.runs.alerts import Alerts
from orchestrator.runs.display import open_display
from orchestrator.runs.usage_hint import format_resume_command
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.earlier_attempts import compute_seconds_used
from orchestrator.sweeps.end_record import record_end
from orchestrator.sweeps.on_ray import run_on_ray
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.tables.trial_record import TrialRecord

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
    metadata = folder.read_metadata()
    command = format_resume_command(folder)
    messages = (command,) if metadata.local else (command, _NOTE_ON_RAY)
    # Alerts tell the end as it is recorded.
    with Alerts(experiment.notify, folder) as alerts:
        with (
            recording_failure(folder),
            open_display(folder, is_sweep=True) as display,
            Interrupts(*messages) as interrupts,
        ):
            end = _make_end(experiment, metadata, previous, interrupts, lease)
            running = RunningSweep(experiment, folder, previous, display, alerts, end)
            hang_reporter = HangReporter(
                running.list_active_trials,
                display,
                lambda: interrupts.requested,
                alerts.send_hang,
            )
            if metadata.local:
                from orchestrator.sweeps.in_process import SequentialTrials

                with hang_reporter:
                    SequentialTrials(running, interrupts.fail).run()
            else:
                run_on_ray(running, address, display, hang_reporter)
                if interrupts.requested:
                    print_line(f"Interrupted. To continue: {command}")
            if end.metric_missing:
                raise MetricMissing(end.metric_missing)
        return record_end(folder, experiment.sweep, interrupted=interrupts.requested)


def _make_end(
    experiment: Experiment,
    metadata: RunMetadata,
    previous: Mapping[int, TrialRecord],
    interrupts: Interrupts,
    lease: Lease,
) -> SweepEnd:
    """Make what ends the sweep early. Its budget's time begins now."""
    assert experiment.sweep is not None
    budget = BudgetUse(
        experiment.sweep.budget,
        ranks=1 if metadata.local else experiment.workers.max_count,
        seconds_used=compute_seconds_used(metadata, previous),
    )

    def is_stop_requested() -> bool:
        lease.check()
        return interrupts.requested

    return SweepEnd(budget, is_stop_requested, fail_fast=metadata.fail_fast)
