"""`hookyard schema`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.config.schema import experiment_schema


def test_it_prints_the_schema() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, experiment_schema())
