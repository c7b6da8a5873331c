"""A sweep on Ray: as many trials at a time as fit. Used in the driver."""

import os

from hooks.loop_services import Display
from orchestrator.engines.hang_reporter import HangReporter
from orchestrator.engines.ray_connection import Ray, describe_connection
from orchestrator.engines.ray_environment import read_environment
from orchestrator.sweeps.requirements import compute_concurrency
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.units import format_count


def run_on_ray(
    sweep: RunningSweep, address: str | None, display: Display, hang_reporter: HangReporter
) -> None:
    """Run the remaining trials under Ray Tune."""
    # Tune would handle Ctrl-C itself.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    experiment = sweep.experiment
    display.line(describe_connection(address))
    with Ray(address, environment=read_environment(experiment.environment)) as ray:
        # Imports ray, which reads its settings then; `Ray` has set them.
        from orchestrator.sweeps.tune.tuner import run_with_tune

        max_concurrent, explanation = compute_concurrency(ray, experiment, sweep.settings)
        count = len(list_remaining_trials(sweep.settings, sweep.previous))
        trials = format_count(count, "remaining trial" if sweep.previous else "trial")
        display.line(
            f"{trials} of {experiment.workers.describe('rank')},"
            f" {max_concurrent} at a time: {explanation}"
        )
        with hang_reporter:
            run_with_tune(sweep, max_concurrent)
