"""Trains one run to its end, or evaluates a checkpoint, with a display. Used in the driver."""

from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import LaunchMetadata
from orchestrator.disk.provenance import collect_provenance
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment, EvaluationTarget
from orchestrator.engines.failure_record import recording_failure
from orchestrator.engines.hang_reporter import HangReporter
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.lifecycle import Lifecycle
from orchestrator.engines.ray_connection import Ray, describe_connection
from orchestrator.engines.ray_environment import read_environment
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.process.interrupts import Interrupts
from orchestrator.process.streams import print_line
from orchestrator.runs.active_run import ActiveRun
from orchestrator.runs.alerts import Alerts
from orchestrator.runs.best import recording_best
from orchestrator.runs.continuation import copy_parent_checkpoint
from orchestrator.runs.display import open_display
from orchestrator.runs.engine_choice import EngineChoice


def collect_launch_metadata(experiment: Experiment, engine: EngineChoice) -> LaunchMetadata:
    """Collect what is known of any run before it begins."""
    return LaunchMetadata(
        provenance=collect_provenance(experiment.import_paths),
        engine=engine.name,
        local=engine.is_local,
        seed=experiment.seed,
        init=find_initial_weights(experiment),
    )


def drive(
    folder: RunFolder,
    experiment: CheckedExperiment,
    engine: EngineChoice,
    lease: Lease,
    *,
    resume_with: str,
    target: EvaluationTarget | None = None,
) -> None:
    """Train a run to its end, or evaluate its `target`; raises RunError. Prints `resume_with` after
    an interruption."""
    notify = experiment.notify
    messages = [resume_with]
    if target:
        notify = None
        messages.append(f"The {target.noun} runs to its end.")
    with (
        Alerts(notify, folder) as alerts,
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
        copy_parent_checkpoint(folder, experiment)
        parent = experiment.source.continued_from
        if parent:
            display.line(f"continues {parent}")
        run = ActiveRun(
            Assignment(experiment.source, folder.location, target=target),
            experiment.take_resolved(),
            display,
            alerts,
            interrupts,
            lease,
        )
        if engine.is_local:
            _train_in_process(run)
        else:
            _train_on_ray(run, engine)
    if folder.read_metadata().status == "interrupted":
        print_line(f"Interrupted after a checkpoint. To resume: {resume_with}")


def _train_in_process(run: ActiveRun) -> None:
    workers = run.resolved.experiment.workers
    if workers.max_count > 1:
        run.display.line(f"local: one process instead of {workers.describe('worker')}")
    engine = InProcess(
        workers,
        display=run.display,
        stop_requested=run.is_stop_requested,
        end_hung=run.interrupts.fail,
    )
    Lifecycle(engine, run.assignment, run.resolved).train(run.alerts.check_report)


def _train_on_ray(run: ActiveRun, engine: EngineChoice) -> None:
    run.display.line(describe_connection(engine.address))
    environment = read_environment(run.resolved.experiment.environment)
    with Ray(engine.address, environment=environment):
        # Imports ray, which reads its settings then; `Ray` has set them.
        from orchestrator.runs.ray_training import train_on_ray

        train_on_ray(run, engine)
