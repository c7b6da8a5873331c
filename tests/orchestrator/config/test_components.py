"""Components: the hooks and the task an experiment names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from hooks import HOOKS, Hook, Priority
from hooks.plan import sort_by_priority
from orchestrator.config import components
from orchestrator.config.components import make_hooks, make_task
from orchestrator.config.python import imports
from orchestrator.config.resolve import resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import ConfigError
from tests.orchestrator.config.samples import HERE, Band, Line, Plain, Shadow


@pytest.fixture(autouse=True)
def two_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two hooks, one of them a default."""
    monkeypatch.setattr(components, "HOOKS", {"shadow": Shadow, "band": Band})
    monkeypatch.setattr(components, "DEFAULT_HOOKS", ("shadow",))


def made(entries: Mapping[str, Any], required: Mapping[str, Any] | None = None) -> dict[str, Hook | None]:
    return {name: one.hook if one else None for name, one in make_hooks(entries, required or {}).items()}


def refused(entries: Mapping[str, Any], required: Mapping[str, Any] | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        make_hooks(entries, required or {})
    return {problem.path: problem.message for problem in caught.value.problems}


def experiment(**more: Any) -> Experiment:
    return Experiment.model_validate({"name": "x", "task": f"{HERE}:Line", "epochs": 1, **more})


# Hooks


def test_defaults_are_there_and_first() -> None:
    hooks = made({"band": {"low": 0, "high": 1}})
    assert list(hooks) == ["shadow", "band"]
    assert hooks["shadow"] == Shadow()


def test_a_default_is_refined_in_place() -> None:
    hooks = made({"band": {"low": 0, "high": 1}, "shadow": {"decay": 0.25}})
    assert list(hooks) == ["shadow", "band"]
    assert hooks["shadow"] == Shadow(decay=0.25)


@pytest.mark.parametrize("off", [None, False])
def test_null_and_false_switch_off(off: Any) -> None:
    assert made({"shadow": off, "band": off}) == {"shadow": None, "band": None}


@pytest.mark.parametrize("on", [True, {}])
def test_true_and_an_empty_mapping_take_the_defaults(on: Any) -> None:
    assert made({"shadow": on})["shadow"] == Shadow()


def test_two_of_a_kind_keep_their_own_parameters() -> None:
    hooks = made({"shadow": {"decay": 0.25}, "slow": {"type": "shadow", "decay": 1}, "far": {"type": f"{HERE}:Shadow"}})
    assert [hook.decay for hook in hooks.values() if isinstance(hook, Shadow)] == [0.25, 1.0, 0.5]


def test_priorities_are_the_class_s_until_said() -> None:
    hooks = made({"shadow": {"priority": "very_high"}, "slow": {"type": "shadow"}})
    assert hooks["shadow"] is not None
    assert hooks["slow"] is not None
    assert (hooks["shadow"].priority, hooks["slow"].priority, Shadow.priority) == (10, Priority.LOW, Priority.LOW)


@pytest.mark.parametrize(
    ("value", "priority"), [*[(p.name, p) for p in Priority], ("Lowest", 100), (0, 0), (37, 37), (100, 100)]
)
def test_priority_is_a_name_in_any_case_or_a_number(value: Any, priority: int) -> None:
    hook = made({"shadow": {"priority": value}})["shadow"]
    assert hook is not None
    assert hook.priority == priority


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        *[("HIGHEST", 0), ("HIGHER", 10), ("HIGH", 20), ("NORMAL", 50), ("LOW", 70), ("LOWER", 80), ("LOWEST", 100)],
        *[(0, 0), (10, 10), (20, 20), (30, 50), (40, 70), (50, 80), (60, 100)],
        *[("high", 20), ("Low", 70)],
    ],
)
def test_levels_of_imix_mean_what_they_meant(level: Any, priority: int) -> None:
    """iMIX itself raises for `HIGH` and takes `high` for NORMAL."""
    hook = made({"shadow": {"level": level}})["shadow"]
    assert hook is not None
    assert hook.priority == priority


def test_the_order_of_imix_s_levels_is_kept() -> None:
    hooks = made({level: {"type": "shadow", "level": level} for level in ("LOW", "HIGHEST", "NORMAL", "HIGH")})
    ordered = [name for name, _ in sort_by_priority({name: hook for name, hook in hooks.items() if hook})]
    assert ordered == ["HIGHEST", "HIGH", "NORMAL", "shadow", "LOW"]


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        *[({"priority": value}, "hooks.shadow.priority") for value in (101, -1, "hihg", True, 1.5, None)],
        *[({"level": value}, "hooks.shadow.level") for value in (25, 100, "VERY_HIGH", True, False, None)],
        ({"level": "HIGH", "priority": 10}, "hooks.shadow"),
    ],
)
def test_wrong_priorities_are_refused(entry: dict[str, Any], path: str) -> None:
    assert list(refused({"shadow": entry})) == [path]


def test_the_file_s_own_data_is_left_alone() -> None:
    """MMEngine's register_hook pops `priority` out of the user's dict."""
    entries = {"slow": {"type": "shadow", "priority": "HIGH", "decay": 0.25}}
    make_hooks(entries, {})
    assert entries == {"slow": {"type": "shadow", "priority": "HIGH", "decay": 0.25}}


def test_every_problem_of_every_hook() -> None:
    assert refused(
        {"shadow": {"decay": 2, "decoy": 1, "priority": "x"}, "band": {"low": 2, "high": 1}, "nope": {}, "odd": 3}
    ) == {
        "hooks.shadow.priority": (
            "must be 0 to 100, or one of HIGHEST, VERY_HIGH, HIGH, ABOVE_NORMAL, NORMAL, "
            "BELOW_NORMAL, LOW, VERY_LOW, LOWEST, got 'x'"
        ),
        "hooks.shadow.decay": "must be at most 1, got 2",
        "hooks.shadow.decoy": "unknown key",
        "hooks.band": "low must be below high, got 2.0 and 1.0",
        "hooks.nope": "there is no hook 'nope'; allowed: one of band, shadow, or module:Class",
        "hooks.odd": "must be a mapping of the hook's parameters, or null or false to turn it off, got 3",
    }


def test_a_hook_is_a_dataclass_and_a_hook() -> None:
    said = refused({"a": {"type": f"{HERE}:Bare"}, "b": {"type": f"{HERE}:Line"}, "c": {"type": 3}})
    assert "is not a dataclass" in said["hooks.a.type"]
    assert "must be a subclass of hooks.hook.Hook" in said["hooks.b.type"]
    assert said["hooks.c.type"] == "must be a string, got 3"


def test_other_packages_offer_hooks_at_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"hookyard.hooks": EntryPoints([EntryPoint("offered", f"{HERE}:Shadow", "hookyard.hooks")])}
    monkeypatch.setattr(imports, "_installed", points.__getitem__)
    assert made({"offered": {"keep": 9}, "mine": {"type": "offered"}}) == {
        "shadow": Shadow(),
        "offered": Shadow(keep=9),
        "mine": Shadow(),
    }


def test_required_hooks_are_refined_by_the_experiment() -> None:
    required = {"extra": {"type": "shadow", "decay": 0.25, "keep": 7}}
    hooks = made({"band": {"low": 0, "high": 1}, "extra": {"keep": 8}}, required)
    assert list(hooks) == ["shadow", "extra", "band"]
    assert hooks["extra"] == Shadow(decay=0.25, keep=8)


def test_required_hooks_cannot_be_switched_off() -> None:
    assert refused({"extra": None}, {"extra": {"type": "shadow"}}) == {
        "hooks.extra": "cannot be turned off, as the task requires it"
    }


def test_entries_in_full() -> None:
    one = make_hooks({"slow": {"type": "shadow", "level": "HIGH", "every": "2 epochs"}}, {})["slow"]
    assert one is not None
    assert one.entry == {
        "type": "shadow",
        "decay": 0.5,
        "every": "2 epochs",
        "keep": 3,
        "mode": "near",
        "tags": [],
        "priority": 20,
    }


def test_a_hook_may_have_a_parameter_called_level() -> None:
    @dataclass
    class Leveled(Hook):
        level: int = 1

    components.HOOKS["leveled"] = Leveled
    assert made({"leveled": {"level": 25}})["leveled"] == Leveled(25)


def test_resolving_gives_fresh_ones_without_those_off() -> None:
    described = experiment(task=f"{HERE}:Choosy", hooks={"band": {"low": 0, "high": 1}, "off": None})
    first, second = (resolve(described.source).hooks for _ in range(2))
    assert first == {"shadow": Shadow(decay=0.25, keep=7), "band": Band(0, 1)}
    assert first["shadow"] is not second["shadow"]


# Task


def test_a_task_takes_its_arguments() -> None:
    assert resolve(experiment(task_args={"width": 4}).source).task == Line(width=4)
    assert make_task(f"{HERE}:Line", {"width": 4})[1] == {"width": 4, "scale": 1.0}


@pytest.mark.parametrize(
    ("name", "arguments", "path", "said"),
    [
        ("Line", {"width": 0}, "task_args.width", "must be greater than 0, got 0"),
        ("Line", {"widht": 1}, "task_args.widht", "unknown key"),
        ("Forgot", {"depth": 1}, "task_args", "declares depth but is not a dataclass"),
        ("Unfinished", {}, "task_args", "abstract"),
        ("Shadow", {}, "task", "must be a subclass of orchestrator.task.Task"),
    ],
)
def test_wrong_tasks_are_refused(name: str, arguments: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_task(f"{HERE}:{name}", arguments)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert said in problem.message


def test_a_task_without_fields_of_its_own() -> None:
    assert isinstance(make_task(f"{HERE}:Plain", {"width": 2})[0], Plain)


def test_the_real_defaults_are_in_the_real_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hooks = make_hooks({}, {})
    assert list(hooks) == list(components.DEFAULT_HOOKS)
    assert {name: type(one.hook) for name, one in hooks.items() if one} == {name: HOOKS[name] for name in hooks}
