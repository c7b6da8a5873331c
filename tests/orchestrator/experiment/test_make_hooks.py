"""The hooks of an experiment, made of their entries."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from hooks import HOOKS, Hook, Priority
from orchestrator.errors import ConfigError
from orchestrator.experiment import make_hooks as module
from orchestrator.experiment.make_hooks import make_hooks
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.user_code import named_classes
from tests.orchestrator.experiment.samples import HERE, Band, Shadow


@pytest.fixture(autouse=True)
def two_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two hooks, one of them a default."""
    monkeypatch.setattr(module, "HOOKS", {"shadow": Shadow, "band": Band})
    monkeypatch.setattr(module, "DEFAULT_HOOKS", ("shadow",))


def made(
    entries: Mapping[str, Any], required: Mapping[str, Any] | None = None
) -> dict[str, Hook | None]:
    return {
        name: one.hook if one else None for name, one in make_hooks(entries, required or {}).items()
    }


def refused(
    entries: Mapping[str, Any], required: Mapping[str, Any] | None = None
) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        make_hooks(entries, required or {})
    return {problem.path: problem.message for problem in caught.value.problems}


def experiment(**more: Any) -> Experiment:
    return Experiment.model_validate({"name": "x", "task": f"{HERE}:Line", "epochs": 1, **more})


# Hooks


@pytest.mark.parametrize("off", [None, False])
def test_null_and_false_turn_a_hook_off(off: Any) -> None:
    assert made({"shadow": off, "band": off}) == {"shadow": None, "band": None}


def test_hooks_of_one_type_have_own_parameters() -> None:
    hooks = made(
        {
            "shadow": {"decay": 0.25},
            "slow": {"type": "shadow", "decay": 1},
            "far": {"type": f"{HERE}:Shadow"},
        }
    )
    assert [hook.decay for hook in hooks.values() if isinstance(hook, Shadow)] == [0.25, 1.0, 0.5]


@pytest.mark.parametrize(
    ("value", "priority"),
    [*[(p.name, p) for p in Priority], ("Lowest", 100), (0, 0), (37, 37), (100, 100)],
)
def test_priority_is_a_name_in_any_case_or_a_number(value: Any, priority: int) -> None:
    hook = made({"shadow": {"priority": value}})["shadow"]
    assert hook is not None
    assert hook.priority == priority


@pytest.mark.parametrize("value", [101, -1, "hihg", True, 1.5, None])
def test_wrong_priorities_are_refused(value: Any) -> None:
    assert list(refused({"shadow": {"priority": value}})) == ["hooks.shadow.priority"]


def test_all_problems_of_all_hooks_are_reported() -> None:
    assert refused(
        {
            "shadow": {"decay": 2, "decoy": 1, "priority": "x"},
            "band": {"low": 2, "high": 1},
            "nope": {},
            "odd": 3,
        }
    ) == {
        "hooks.shadow.priority": (
            "must be from 0 to 100, or one of HIGHEST, VERY_HIGH, HIGH, ABOVE_NORMAL, NORMAL, "
            "BELOW_NORMAL, LOW, VERY_LOW, LOWEST, got 'x'"
        ),
        "hooks.shadow.decay": "must be at most 1, got 2",
        "hooks.shadow.decoy": "unknown key",
        "hooks.band": "low must be below high, got 2.0 and 1.0",
        "hooks.nope": "unknown hook 'nope'",
        "hooks.odd": "must be a mapping of the hook's parameters, true, false or null, got 3",
    }


def test_hook_type_must_be_a_dataclass_and_a_hook() -> None:
    message = refused(
        {"a": {"type": f"{HERE}:Bare"}, "b": {"type": f"{HERE}:Line"}, "c": {"type": 3}}
    )
    assert "is not a dataclass" in message["hooks.a.type"]
    assert "must be a subclass of Hook" in message["hooks.b.type"]
    assert message["hooks.c.type"] == "must be a string, got 3"


def test_entry_points_provide_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "hookyard.hooks": EntryPoints([EntryPoint("offered", f"{HERE}:Shadow", "hookyard.hooks")])
    }
    monkeypatch.setattr(named_classes, "_list_entry_points", points.__getitem__)
    assert made({"offered": {"keep": 9}, "mine": {"type": "offered"}}) == {
        "shadow": Shadow(),
        "offered": Shadow(keep=9),
        "mine": Shadow(),
    }


def test_experiment_refines_required_hooks() -> None:
    required = {"extra": {"type": "shadow", "decay": 0.25, "keep": 7}}
    hooks = made({"band": {"low": 0, "high": 1}, "extra": {"keep": 8}}, required)
    assert list(hooks) == ["shadow", "extra", "band"]
    assert hooks["extra"] == Shadow(decay=0.25, keep=8)


def test_required_hooks_cannot_be_turned_off() -> None:
    assert refused({"extra": None}, {"extra": {"type": "shadow"}}) == {
        "hooks.extra": "cannot be turned off, as the task requires it"
    }


def test_default_hooks_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hooks = make_hooks({}, {})
    assert list(hooks) == list(module.DEFAULT_HOOKS)
    assert {name: type(one.hook) for name, one in hooks.items() if one} == {
        name: HOOKS[name] for name in hooks
    }
