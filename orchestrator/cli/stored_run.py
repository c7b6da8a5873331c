"""Runs and checkpoints that the arguments of subcommands name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep


def open_run_or_sweep(path: str) -> Run | Sweep:
    """Open a run or a sweep; raises UsageError if there is none."""
    from orchestrator.disk.run_folder import RunFolder

    return _open_folder(RunFolder.open(path))


def choose_run(folder: RunFolder) -> Run:
    """Return the run in a folder, or the best trial of the sweep there."""
    from orchestrator.runs.result import Run

    opened = _open_folder(folder)
    return opened if isinstance(opened, Run) else opened.best


def _open_folder(folder: RunFolder) -> Run | Sweep:
    from orchestrator.runs.result import Run

    if folder.read_metadata().sweep is None:
        return Run(folder)

    # It imports pandas, which takes long.
    from orchestrator.sweeps.results.result import Sweep

    return Sweep(folder)


def split_checkpoint(argument: str) -> tuple[str, str] | None:
    """Split RUN@CHECKPOINT into the run and the label or name of its checkpoint; None if the
    argument names no checkpoint."""
    run, at, label = argument.rpartition("@")
    # An @ before a slash is part of a path, such as s3://user@host/runs.
    if not at or "/" in label:
        return None
    return run, label
