"""Words for an evaluation or a prediction in messages, and how to repeat it."""

import shlex

from hooks.errors import add_article
from orchestrator.disk.metadata import Evaluated


def name_with_article(evaluated: Evaluated) -> str:
    return add_article(evaluated.kind)


def get_participle(evaluated: Evaluated) -> str:
    """Return what a run is, to end a clause such as `the run cannot be evaluated`."""
    return "used to predict" if evaluated.verb == "predict" else "evaluated"


def format_command(evaluated: Evaluated, run: object) -> str:
    """Return what evaluates or predicts again with a checkpoint of a run: a command, or Python for a
    dataset that no command can name."""
    if evaluated.data and ":" not in evaluated.data:
        return (
            f"open_run({str(run)!r}).predict(DATA, {evaluated.checkpoint!r}, {evaluated.phase!r})"
        )
    checkpoint = shlex.quote(f"{run}@{evaluated.checkpoint}")
    command = f"hookyard {evaluated.verb} {checkpoint} --phase {evaluated.phase}"
    return f"{command} --data {shlex.quote(evaluated.data)}" if evaluated.data else command
