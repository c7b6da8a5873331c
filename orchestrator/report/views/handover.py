"""The best, handed over: what was reached, the checkpoint that holds it, and what to type to use it."""

from __future__ import annotations

from dataclasses import astuple

from orchestrator.records.metadata import Evaluated
from orchestrator.records.run_folder import RunFolder
from orchestrator.report import page
from orchestrator.report.markup import element, joined
from orchestrator.runs.best import Best, Use


def handover(folder: RunFolder, best: Best | None, trial: str = "") -> page.Section:
    """How to use the best checkpoint of a run, or of a sweep's best `trial`."""
    if measured := folder.metadata().evaluates:
        return page.Section("best", "Evaluated checkpoint", f"This measures {Evaluated(**measured)}.")
    if best is None or best.checkpoint is None:
        return page.Section(
            "best", "Use the best checkpoint", f"No checkpoint is kept as the best{f': {best}' if best else ''}."
        )
    best_trial = RunFolder(folder.storage / "trials", trial) if trial else None
    pieces = [
        element("p", f"{trial} {best}.".lstrip()),
        element("pre", "\n".join(astuple(Use.of(folder, "best", best_trial))), tabindex=0),
    ]
    note = "The model in Python, with the evaluated weights; and a run that trains it longer."
    return page.Section("best", "Use the best checkpoint", joined(pieces), note)
