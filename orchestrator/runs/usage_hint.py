"""Code and a command to use a checkpoint of a run. Does not need torch."""

import json
import shlex
from dataclasses import dataclass

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status

RESUMABLE = ("interrupted", "failed", "lost")
"""Statuses of runs and sweeps that can be resumed."""
_LENGTH_ARGUMENTS = ("T_max", "total_iters", "total_steps")
"""Scheduler arguments that hold a length. If it equals the run's length, it changes along with
it."""


@dataclass(frozen=True)
class UsageHint:
    """Code and a command to use a checkpoint of a run, or of a sweep's best trial."""

    python: str
    command: str
    resumes: bool
    """True if the command resumes the run; otherwise it trains for longer, as a new run."""


def format_resume_command(folder: RunFolder) -> str:
    """Return the command that resumes a run or a sweep."""
    return f"hookyard resume {shlex.quote(str(folder))}"


def make_usage_hint(folder: RunFolder, label: str, trial: RunFolder | None = None) -> UsageHint:
    """Return code that loads the model, and a command that resumes the run or trains for as long
    again.

    `trial` is a sweep's best trial. A task with a custom loop has no model to load, only a
    checkpoint.
    """
    opener = "open_sweep" if folder.read_metadata().sweep else "open_run"
    opened = f"{opener}({json.dumps(str(folder))})"
    attempts = (trial or folder).read_attempts()
    has_model = not attempts or attempts[-1].order is not None
    if has_model:
        code = f"model = {opened}.load({json.dumps(label)})"
    else:
        run = f"{opened}.best" if trial else opened
        code = f"path = {run}.checkpoint({json.dumps(label)})"
    python = f"from orchestrator import {opener}; {code}"
    status = find_status(folder)
    if status in RESUMABLE:
        return UsageHint(python, format_resume_command(folder), resumes=True)
    return UsageHint(python, _make_longer_command(folder, label, status), resumes=False)


def _make_longer_command(folder: RunFolder, label: str, status: str) -> str:
    """Return the command that trains for as long again from a checkpoint."""
    config = folder.read_experiment()
    unit = "epochs" if config.get("epochs") else "steps"
    length = config.get(unit) or 0
    # A finished run that trained for less than its length has an edited experiment.yaml.
    is_edited = status == "finished" and 0 < _count_trained(folder, unit) < length
    new_length = length if is_edited else 2 * length
    paths = [unit]
    scheduler = config.get("scheduler")
    if isinstance(scheduler, dict):
        paths += [f"scheduler.{key}" for key in _LENGTH_ARGUMENTS if scheduler.get(key) == length]

    command = ["hookyard run", shlex.quote(f"{folder}@{label}")]
    command += [f"{path}={new_length}" for path in paths]
    if folder.read_metadata().local:
        # Several workers would train with larger batches in total.
        command.append("--local")
    return " ".join(command)


def _count_trained(folder: RunFolder, unit: str) -> int:
    """Return the epochs or steps that a run has reported; 0 before its first report."""
    reports = folder.read_current_reports()
    if not reports:
        return 0
    counters = reports[-1]
    epochs: int = counters.get("epoch", -1) + 1
    steps: int = counters.get("step", 0)
    return epochs if unit == "epochs" else steps
