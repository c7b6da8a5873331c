"""`hookyard schema`"""

from __future__ import annotations

from orchestrator.cli.output import print_json


def schema() -> None:
    """Prints the JSON Schema of experiment files, for editors."""
    from orchestrator.config.schema import experiment_schema

    print_json(experiment_schema())
