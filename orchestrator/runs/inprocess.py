"""A run in this process, without Ray: notebooks, debuggers, `--local`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hooks.state import Display
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.runs.session import Assignment, reports


def run_in_process(assignment: Assignment, display: Display, stop_asked: Callable[[], bool]) -> Report | None:
    """Trains as a single rank and returns the last report."""
    device = torch.device("cuda" if assignment.experiment["workers"]["gpu"] and torch.cuda.is_available() else "cpu")
    last = None
    for report in reports(assignment, World(device=device), display=display, stop_asked=stop_asked):
        last = report
    return last
