"""The best checkpoint, and how to use it."""

from orchestrator.disk.best import Best
from orchestrator.disk.run_folder import RunFolder
from orchestrator.report import page
from orchestrator.report.markup import concatenate, element
from orchestrator.runs.usage_hint import make_usage_hint


def render_best_checkpoint(
    folder: RunFolder, best: Best | None, trial: str | None = None
) -> page.Section:
    """Render instructions for using the best checkpoint of a run, or of a sweep's best `trial`."""
    evaluated = folder.read_metadata().evaluates
    if evaluated:
        text = f"{evaluated.kind.capitalize()} of {evaluated}."
        return page.Section("best", "Evaluated checkpoint", text)

    title = "Use the best checkpoint"
    if best is None:
        return page.Section("best", title, "There is no best checkpoint.")
    if best.checkpoint is None:
        return page.Section("best", title, f"There is no best checkpoint: {best}.")

    text = f"{best}."
    best_trial = None
    if trial:
        text = f"{trial}: {text}"
        best_trial = RunFolder(folder.storage / "trials", trial)
    hint = make_usage_hint(folder, "best", best_trial)
    code = element("pre", f"{hint.python}\n{hint.command}", tabindex=0)
    note = "The model in Python with the evaluated weights, and a run that continues training it."
    return page.Section("best", title, concatenate([element("p", text), code]), note)
