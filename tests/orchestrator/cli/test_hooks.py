"""`hookyard hooks`: the list of hooks, and one of them."""

import json

from typer.testing import CliRunner

import hooks
from orchestrator.cli import app
from tests.orchestrator.experiment.samples import HERE


def test_every_hook_is_listed_with_its_docs() -> None:
    lines = CliRunner().invoke(app, ["hooks"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["hook", *sorted(hooks.HOOKS)]
    listed = json.loads(CliRunner().invoke(app, ["hooks", "--json"]).stdout)
    for one in listed:
        assert one["doc"]
        assert one["events"]
        assert all(parameter["doc"] for parameter in one["parameters"]), one["name"]


def test_hooks_shows_a_users_own_hook() -> None:
    result = CliRunner().invoke(app, ["hooks", f"{HERE}:Shadow"])
    assert result.exit_code == 0
    assert "At a distance." in result.stdout
    assert "priority: LOW (70)" in result.stdout
    assert (
        json.loads(CliRunner().invoke(app, ["hooks", f"{HERE}:Shadow", "--json"]).stdout)["class"]
        == f"{HERE}:Shadow"
    )


def test_hooks_names_the_fields_that_may_change_during_a_run() -> None:
    shown = CliRunner().invoke(app, ["hooks", "gradient_clip"]).stdout
    assert "mutable:  max_norm, max_value (may change during a run)" in shown.splitlines()
    assert "mutable:" not in CliRunner().invoke(app, ["hooks", "console"]).stdout
