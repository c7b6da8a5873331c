"""What the reference says of a key, a hook and a command, from small ones of this module."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest
import typer
import yaml
from annotated_types import Ge
from pydantic import Field

from docs.site.commands import find_example, make_command_entry
from docs.site.docstrings import Column, Docstring
from docs.site.fields import list_entries
from docs.site.hook_entries import GROUPS, make_hook_entry
from docs.site.reference import make_sweep_keys
from hooks import HOOKS, Hook, Interval
from hooks.needs import Needs
from orchestrator.cli import PANELS, app
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.hook_reference import describe_hook
from orchestrator.experiment.sections.experiment import Experiment


class Near(Model):
    """Measure nearby."""

    type: Literal["near"] = "near"
    radius: Annotated[float, Ge(0)] = 0.5
    """Largest distance."""


class Far(Model):
    """Measure far away."""

    type: Literal["far"] = "far"


class Step(Model):
    """A part of a plan."""

    at: Interval = Interval(1, "epochs")
    """When it happens."""


class Plan(Model):
    """A file."""

    name: str
    """Its name."""
    from_: Annotated[str | None, Needs("name", "x")] = Field(None, alias="from")
    """Where it starts."""
    steps: list[Step] = []  # noqa: RUF012
    """Its parts."""
    rule: Near | Far = Near()
    """How to measure."""


def test_keys_have_path_type_default_and_meaning() -> None:
    entries = {entry.path: entry for entry in list_entries(Plan)}
    assert list(entries) == [
        *("name", "from", "steps", "steps[].at"),
        *("rule", "rule: near", "rule.radius", "rule: far"),
    ]
    shown = [
        (entries[path].type, entries[path].default, entries[path].meaning)
        for path in ("name", "from", "steps", "steps[].at", "rule", "rule.radius")
    ]
    assert shown == [
        ("str", "**required**", "Its name."),
        ("str | null", "default `null`", "Where it starts."),
        ("list[mapping]", "default `[]`", "Its parts."),
        ("Interval in epochs or steps", "default `1 epoch`", "When it happens."),
        ("mapping", "default `near`", "How to measure."),
        ("float >= 0", "default `0.5`", "Largest distance."),
    ]
    assert entries["from"].needs == ("name: x",)
    assert entries["rule.radius"].to_markdown(3) == (
        "### `rule.radius` { #rule.near.radius }\n\n"
        "`float >= 0`, default `0.5`\n\nLargest distance.\n"
    )


@dataclass
class Warmth(Hook):
    """Measure the warmth of each batch,
    in degrees.

        warmth: {offset: 3}

    Slow on a cold day.

    Columns:
        * `warmth` (int32): Degrees, without
          the offset.
        * `cold`, `hot`: Whether it is.

    Metrics:
        * `warmth/peak`: The most.

    Source: MMEngine WarmthHook,
    "On warmth" (2020).
    """

    mutable: ClassVar[frozenset[str]] = frozenset({"offset"})
    offset: int = 1
    """Added to each value."""

    def on_step(self, state: object) -> None:
        pass


def test_docstring_of_a_hook_is_taken_apart() -> None:
    doc = Docstring.parse(Warmth.__doc__ or "")
    assert doc == Docstring(
        summary="Measure the warmth of each batch, in degrees.",
        example="warmth: {offset: 3}",
        text="Slow on a cold day.",
        source='MMEngine WarmthHook, "On warmth" (2020)',
        columns=(
            Column("`warmth`", "int32", "Degrees, without the offset."),
            Column("`cold`, `hot`", "", "Whether it is."),
        ),
        metrics=(Column("`warmth/peak`", "", "The most."),),
    )


def test_entry_of_a_hook_has_all_of_it() -> None:
    lines = make_hook_entry(describe_hook("warmth", Warmth)).splitlines()
    assert [line for line in lines if line] == [
        "### `warmth` { #warmth }",
        "Measure the warmth of each batch, in degrees.",
        "```yaml",
        "hooks:",
        "  warmth: {offset: 3}",
        "```",
        "Slow on a cold day.",
        "**Columns**",
        "* `warmth`: Degrees, without the offset.",
        "* `cold`, `hot`: Whether it is.",
        "**Metrics of a report**",
        "* `warmth/peak`: The most.",
        "* Class: `tests.docs.test_reference:Warmth`",
        "* Runs on every rank, with priority NORMAL (50)",
        "* Events: `on_step`",
        "* Fields that may change during a run (mutable): `offset`",
        '* Comes from: MMEngine WarmthHook, "On warmth" (2020)',
        "**Fields**",
        "#### `warmth.offset` { #warmth.offset }",
        "`int`, default `1`",
        "Added to each value.",
    ]


def look(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names.")] = None,
    at_step: Annotated[int, typer.Option(metavar="N", help="The step.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at a run.

    It must exist.

    Example: hookyard look runs/first
    """


def test_entry_of_a_command_has_its_form_and_options() -> None:
    lines = make_command_entry(look).splitlines()
    assert [line for line in lines if line] == [
        "### `look` { #look }",
        "```text",
        "hookyard look RUN [NAME ...] [OPTIONS]",
        "```",
        "Look at a run.",
        "It must exist.",
        "```console",
        "$ hookyard look runs/first",
        "```",
        "* `RUN`: A run.",
        "* `NAME`: Names.",
        "* `--at-step` `N`: The step. Default: `3`.",
        "* `--json`: Print JSON.",
    ]


@pytest.mark.parametrize("verb", [verb for verbs in PANELS.values() for verb in verbs])
def test_example_of_a_command_is_one_that_it_accepts(verb: Callable[..., None]) -> None:
    program, name, *words = shlex.split(find_example(verb))
    written = verb.__name__.replace("_", "-")
    command = typer.main.get_group(app).commands[written]
    assert (program, name) == ("hookyard", written)
    command.make_context(name, words)


def test_every_key_and_field_has_a_meaning() -> None:
    assert [entry.path for entry in list_entries(Experiment) if not entry.meaning] == []
    hooks = [describe_hook(name, cls) for name, cls in HOOKS.items()]
    assert [hook["name"] for hook in hooks if not hook["doc"]] == []
    fields = [(hook["name"], field) for hook in hooks for field in hook["parameters"]]
    assert [(name, field["name"]) for name, field in fields if not field["doc"]] == []


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_example_of_a_hook_is_valid(name: str) -> None:
    doc = Docstring.parse(HOOKS[name].__doc__ or "")
    example = yaml.safe_load(doc.example or f"{name}: {{}}")
    settings = example[name]
    assert list(example) == [name]
    checked = validate(make_fields_model(HOOKS[name]), settings, name)
    assert checked.model_fields_set == set(settings)


def test_all_hooks_are_in_a_group() -> None:
    assert {cls.__module__.split(".")[1] for cls in HOOKS.values()} == set(GROUPS)


def test_schedulers_have_anchors_of_their_own() -> None:
    keys = make_sweep_keys()
    assert "{ #sweep.scheduler.asha.max_t }" in keys
    assert "{ #sweep.scheduler.hyperband.max_t }" in keys
