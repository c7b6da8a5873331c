"""`hookyard hooks [NAME]`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import hooks
from orchestrator.cli import app
from orchestrator.cli.hooks import describe
from tests.orchestrator.config.samples import HERE, Band, Shadow


def test_a_hook_as_plain_data() -> None:
    described = describe("shadow", Shadow)
    assert described["parameters"][0] == {
        "name": "decay",
        "type": "float >= 0 <= 1",
        "required": False,
        "default": 0.5,
        "doc": "How much stays.",
    }
    assert described["parameters"][1] == {
        "name": "every",
        "type": "Interval",
        "required": False,
        "default": "1 epoch",
        "doc": "How often, in words.",
    }
    assert [one["type"] for one in described["parameters"][2:]] == ["int", "near | far", "list[str]"]
    assert (described["events"], described["priority"], described["ranks"]) == (["on_update"], "LOW (70)", "all")
    assert Path(described["source"]).name == "samples.py"
    assert [one["required"] for one in describe("band", Band)["parameters"]] == [True, True]


def test_what_waits_for_the_device_is_told() -> None:
    shown = CliRunner().invoke(app, ["hooks", "loss_spike"]).stdout
    assert "waits:    for the device in on_gradients\n" in shown
    assert "waits:" not in CliRunner().invoke(app, ["hooks", "gradient_clip"]).stdout


def test_types_are_said_as_one_would_say_them() -> None:
    said = {
        (name, one["name"]): one["type"]
        for name, cls in hooks.HOOKS.items()
        for one in describe(name, cls)["parameters"]
    }
    assert said["swav", "assigned_views"] == "list[int >= 0]"
    assert said["checkpoint", "keep"] == "int >= 1 | null"
    assert said["console", "window"] == "int >= 1 | line | epoch | global"
    assert said["profiler", "activities"] == "tuple[cpu | cuda, ...] | null"
    assert said["checkpoint", "best"] == "str | list[str] | null"
    assert not [text for text in said.values() if "typing" in text or "Annotated" in text or "NoneType" in text]


def test_every_hook_is_listed_with_one_line() -> None:
    lines = CliRunner().invoke(app, ["hooks"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["hook", *sorted(hooks.HOOKS)]


def test_every_hook_can_be_shown() -> None:
    listed = json.loads(CliRunner().invoke(app, ["hooks", "--json"]).stdout)
    assert {one["name"] for one in listed} == set(hooks.HOOKS)
    for one in listed:
        assert one["doc"]
        assert one["events"]
        assert all(parameter["doc"] for parameter in one["parameters"]), one["name"]


def test_one_of_one_s_own() -> None:
    result = CliRunner().invoke(app, ["hooks", f"{HERE}:Shadow"])
    assert result.exit_code == 0
    assert "At a distance." in result.stdout
    assert "priority: LOW (70)" in result.stdout
    assert (
        json.loads(CliRunner().invoke(app, ["hooks", f"{HERE}:Shadow", "--json"]).stdout)["class"] == f"{HERE}:Shadow"
    )


def test_an_unknown_one() -> None:
    result = CliRunner().invoke(app, ["hooks", "emma"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'ema'?" in result.stderr
