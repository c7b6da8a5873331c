"""`hookyard schema`: the JSON Schema of experiment files."""

from __future__ import annotations

from orchestrator.cli.output import print_json


def schema() -> None:
    """Print the JSON Schema of experiment files, for editors.

    Example: hookyard schema
    """
    from orchestrator.experiment.json_schema import make_experiment_schema

    print_json(make_experiment_schema())
