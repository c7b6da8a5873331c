"""The experiment, its environment, and the best checkpoint to use."""

import shlex
from collections.abc import Sequence
from dataclasses import astuple

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.report import page
from orchestrator.report.markup import Quantity, concatenate, element, make_table
from orchestrator.runs.best import Best
from orchestrator.runs.usage_hint import make_usage_hint


def render_experiment(
    config: str, run: RunMetadata, attempts: Sequence[Attempt] = ()
) -> page.Section:
    git = run.git or {}
    entries = {
        "command": shlex.join(map(str, run.argv)) if run.argv else None,
        "started": run.started,
        "ended": run.ended,
        "host": run.host,
        "seed": None if run.seed is None else str(run.seed),
        "git commit": f"{git['commit']}{' with changes' if git.get('dirty') else ''}"
        if git.get("commit")
        else None,
        "python": run.python,
        "platform": run.platform,
        **run.versions,
        **run.environment,
        **{f"info: {name}": str(value) for name, value in run.info.items()},
    }
    facts = [(name, Quantity(name, value)) for name, value in entries.items() if value is not None]
    rows = [
        (str(attempt.number), attempt.started, attempt.checkpoint or "the beginning")
        for attempt in attempts
    ]
    content = [
        page.make_details("experiment.yaml", config, is_open=True),
        make_table("Environment", ("", "value"), facts, class_="facts"),
        make_table("Attempts", ("attempt", "started", "from"), rows) if len(rows) > 1 else None,
        page.make_details("Changes to the commit", git["diff"]) if git.get("diff") else None,
    ]
    return page.Section("experiment", "Experiment", concatenate(content))


def render_best_checkpoint(
    folder: RunFolder, best: Best | None, trial: str | None = None
) -> page.Section:
    """Render instructions for using the best checkpoint of a run, or of a sweep's best `trial`."""
    if evaluated := folder.read_metadata().evaluates:
        text = f"{evaluated.noun.capitalize()} of {evaluated}."
        return page.Section("best", "Evaluated checkpoint", text)
    if best is None or best.checkpoint is None:
        return page.Section(
            "best",
            "Use the best checkpoint",
            f"There is no best checkpoint{f': {best}' if best else ''}.",
        )
    best_trial = RunFolder(folder.storage / "trials", trial) if trial else None
    pieces = [
        element("p", f"{trial}: {best}." if trial else f"{best}."),
        element("pre", "\n".join(astuple(make_usage_hint(folder, "best", best_trial))), tabindex=0),
    ]
    note = "The model in Python with the evaluated weights, and a run that continues training it."
    return page.Section("best", "Use the best checkpoint", concatenate(pieces), note)
