"""A run in this process, without Ray: notebooks, debuggers, `--local`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hooks.state import Display
from orchestrator.config.experiment import Experiment
from orchestrator.config.resolve import resolve
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.session import Assignment, reports
from orchestrator.errors import HookyardError
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


def run_in_process(assignment: Assignment, display: Display, stop_asked: Callable[[], bool]) -> Report | None:
    """Trains as a single rank and returns the last report; raises RankFailed where the experiment fails."""
    last = None
    try:
        resolved = resolve(assignment.source)
        for report in reports(assignment, only_rank(resolved.experiment), resolved, display=display, stop_asked=stop_asked):
            last = report
    except HookyardError:
        raise
    except Exception as error:
        raise RankFailed.told(0, error) from error
    return last


def only_rank(experiment: Experiment) -> World:
    """The world of a process that trains by itself."""
    return World(device=torch.device("cuda" if experiment.workers.gpu and torch.cuda.is_available() else "cpu"))
