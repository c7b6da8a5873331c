"""`hookyard schema`."""

import json

from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.experiment.json_schema import make_experiment_schema


def test_schema_prints_the_json_schema() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, make_experiment_schema())
