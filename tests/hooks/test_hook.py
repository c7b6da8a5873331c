import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from hooks import EVENTS, HOOKS, Hook, Interval, Ranks, Setup, State, at_interval
from hooks.checkpointing.export import Export
from hooks.needs import Needs
from hooks.suitability import find_reason_against
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.make_hooks import make_hooks


def test_a_misspelt_event_is_refused_when_the_class_is_defined() -> None:
    with pytest.raises(
        TypeError, match=r"Typo.on_stepp: there is no such event \(did you mean on_step\?\)"
    ):

        class Typo(Hook):
            def on_stepp(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("before_run", "on_start"),
        ("before_train_epoch", "on_phase_start"),
        ("before_train_iter", "on_batch"),
        ("after_train_iter", "on_step"),
        ("after_val_epoch", "on_phase_end"),
        ("before_save_checkpoint", "on_save"),
        ("on_train_batch_end", "on_step"),
        ("on_before_optimizer_step", "on_gradients"),
        ("on_loss_and_meter", "on_loss"),
        ("on_epoch_end", "on_phase_end"),
        ("on_train_begin", "on_start"),
    ],
)
def test_name_of_an_event_in_another_system_is_refused_with_its_counterpart(
    name: str, event: str
) -> None:
    with pytest.raises(TypeError, match=f"Ported.{name}: .*did you mean {event}\\?"):
        type("Ported", (Hook,), {name: lambda self, state: None})


def test_hook_that_the_loop_never_calls_is_refused_before_training() -> None:
    idle = type("Idle", (Hook,), {"each_step": lambda self, state: None})()
    reason = find_reason_against(idle, Setup())
    assert reason.startswith("Idle overrides no event, so it is never called; events: on_load, ")
    for name, cls in HOOKS.items():
        assert any(getattr(cls, event) is not getattr(Hook, event) for event in EVENTS), name


def test_a_field_that_hides_an_event_is_refused() -> None:
    with pytest.raises(TypeError, match="Hides: the field on_step has the name of an event"):

        class Hides(Hook):
            on_step: int = 5


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"on_step": lambda self: None},
            "must take the arguments of hooks: `def on_step(self, state)`",
        ),
        (
            {"on_saved": lambda self, state: 0},
            "must take the arguments of hooks: `def on_saved(self, state, path)`",
        ),
        (
            {"on_end": lambda self, state, *, loud: 0},
            "must take the arguments of hooks: `def on_end(self, state)`",
        ),
        (
            {"handles": lambda self: True},
            "must take the arguments of hooks: `def handles(self, event)`",
        ),
        ({"priority": "HIGH"}, "must be a number or a Priority, such as Priority.HIGH, got 'HIGH'"),
        ({"state_fields": "_best"}, "must be a tuple of names, such as (\"_best\",), got '_best'"),
        (
            {"ranks": "master"},
            "must be one of Ranks.ALL, Ranks.MASTER, Ranks.LOCAL_MASTER, got 'master'",
        ),
        (
            {"phase_metrics": "samples_per_s"},
            'must be a frozenset of names, such as frozenset({"accuracy"}), got',
        ),
        ({"mutable": ("decay",)}, "must be a frozenset of names"),
        ({"waits_for_device": "on_step"}, "must be a frozenset of names"),
        (
            {"state_fields": ("best", "_best")},
            "names best and _best, which a checkpoint keeps under one name",
        ),
    ],
)
def test_class_that_the_loop_cannot_call_is_refused_when_it_is_defined(
    members: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Wrong.{next(iter(members))} {message}")):
        type("Wrong", (Hook,), members)


def test_events_of_a_mixin_are_checked_too() -> None:
    class Mixin:
        def on_stepp(self, state: State) -> None: ...

    with pytest.raises(TypeError, match=r"Mixed.on_stepp: there is no such event"):

        class Mixed(Mixin, Hook):
            pass


def test_attributes_of_a_base_class_have_no_name_in_common() -> None:
    class Base(Hook):
        state_fields = ("_best",)

    with pytest.raises(
        TypeError, match=r"Best\.state_fields names _best and best|names best and _best"
    ):

        class Best(Base):
            state_fields = ("best",)


def test_event_may_take_its_arguments_by_other_names() -> None:
    type(
        "Right",
        (Hook,),
        {"on_step": lambda self, *arguments: None, "on_saved": lambda hook, s, path, extra=1: None},
    )


@dataclass
class Remembering(Hook):
    """A hook that lists what a checkpoint keeps of it: a number, and an object with a state of its
    own."""

    state_fields: ClassVar[tuple[str, ...]] = ("_count", "layer")
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_own",)

    def __post_init__(self) -> None:
        self._count = 0
        self._own = [0]
        self.layer = nn.Linear(1, 1)


def test_listed_attributes_are_saved_and_restored() -> None:
    first = Remembering()
    second = Remembering()
    first._count = 3
    first._own = [5]
    state = first.state_dict()
    assert (state["count"], first.rank_state_dict()) == (3, {"own": [5]})
    second.load_state_dict(state)
    second.load_rank_state_dict(first.rank_state_dict())
    assert (second._count, second._own) == (3, [5])
    assert second.layer is not first.layer
    torch.testing.assert_close(second.layer.state_dict(), first.layer.state_dict(), rtol=0, atol=0)


@dataclass
class RememberingMore(Remembering):
    state_fields: ClassVar[tuple[str, ...]] = ("more",)
    more: int = 7


def test_attributes_that_a_base_class_lists_are_saved_too() -> None:
    assert RememberingMore().state_dict().keys() == {"count", "layer", "more"}


def test_a_listed_attribute_that_a_checkpoint_lacks_is_named_with_a_remedy() -> None:
    before = Remembering().state_dict()
    message = (
        "the checkpoint has no 'more', which state_fields names;"
        " give the hook another name, under which it starts as new"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        RememberingMore().load_state_dict(before)


def test_a_listed_attribute_that_does_not_exist_is_refused_before_training() -> None:
    hook = dataclass(type("Forgetful", (Remembering,), {"rank_state_fields": ("_cuont",)}))()
    reason = "rank_state_fields names '_cuont', which is no attribute of a new hook; did you mean '_count'?"
    assert find_reason_against(hook, Setup()) == reason


@pytest.mark.parametrize("ranks", [Ranks.MASTER, Ranks.LOCAL_MASTER])
def test_a_collective_hook_must_run_on_all_ranks(ranks: Ranks) -> None:
    with pytest.raises(
        TypeError, match=f"Lonely is collective, so it must run on all ranks, not on {ranks}"
    ):
        type("Lonely", (Hook,), {"collective": True, "ranks": ranks})


@dataclass
class Paced(Hook):
    """A hook that is called at an interval."""

    every: Interval = Interval(1, "steps")

    @at_interval("every")
    def on_step(self, state: State) -> None:
        pass


def test_interval_in_epochs_is_refused_if_it_never_calls_the_hook() -> None:
    reason = "on_step is never called at an interval of 2 epochs; set one in steps or iterations"
    assert find_reason_against(Paced(Interval(2)), Setup()) == reason
    assert find_reason_against(Paced(Interval(2, "steps")), Setup()) == ""
    assert find_reason_against(Paced(Interval(0)), Setup()) == ""
    assert find_reason_against(Export(every=Interval(2)), Setup()) == "", (
        "it also handles on_phase_end"
    )


def test_hook_handles_only_the_events_that_it_overrides() -> None:
    @dataclass
    class Steps(Hook):
        priority: ClassVar[int] = 5

        def on_step(self, state: object) -> None: ...

    assert [event for event in EVENTS if Steps().handles(event)] == ["on_step"]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "checkpoint.begin": ({"every": 0, "begin": 2}, "every"),
    "checkpoint.keep": ({"every": 0, "keep": 2}, "every"),
    "checkpoint.mode": ({"mode": "max"}, "best"),
    "dino.warmup_temperature": ({"warmup_temperature": 0.1}, "warmup_epochs"),
    "ema.buffers": (
        {"average": "power", "std": 0.1, "buffers": "ema"},
        "average: exponential or annealing or stoch",
    ),
    "ema.gamma": ({"gamma": 2.0}, "average: annealing"),
    "ema.keep_snapshots": (
        {"average": "power", "std": 0.1, "snapshots": 0, "keep_snapshots": 9},
        "snapshots",
    ),
    "ema.snapshots": ({"snapshots": "5 steps"}, "average: power"),
    "ema.std": ({"std": 0.1}, "average: power"),
    "empty_cache.every": ({"every": 2}, "after_iter: true"),
    "export.dynamic_batch": ({"format": "trace", "dynamic_batch": False}, "format: pt2"),
    "gradient_clip.max_norm": ({"max_norm": 2.0, "max_value": 1.0}, "max_value: null"),
    "ibot.warmup_patch_temperature": ({"warmup_patch_temperature": 0.1}, "warmup_epochs"),
    "ibot.warmup_temperature": ({"warmup_temperature": 0.1}, "warmup_epochs"),
    "nan_guard.patience": ({"patience": 3}, "action: skip"),
    "param_scheduler.every": ({"every": 2, "monitor": "val/loss"}, "monitor: null"),
    "profiler.stop_after": ({"repeat": 0, "stop_after": True}, "repeat"),
    "swav.queue_begin": ({"queue_begin": 3}, "queue_length"),
    "swav_momentum.queue_begin": ({"queue_begin": 3}, "queue_length"),
    "tensorboard.every": ({"every": 2, "axis": "epoch"}, "axis: step or iteration or samples"),
}


def test_every_field_with_needs_has_a_case() -> None:
    declared = set()
    for name, cls in HOOKS.items():
        for field_name, field in make_fields_model(cls).model_fields.items():
            if any(isinstance(item, Needs) for item in field.metadata):
                declared.add(f"{name}.{field_name}")
    assert declared == CASES.keys()


@pytest.mark.parametrize("path", CASES)
def test_field_without_its_need_is_refused_unless_it_has_its_default(path: str) -> None:
    values, needed = CASES[path]
    hook, _, field = path.partition(".")
    with pytest.raises(ConfigError, match=f"hooks.{path}: has no effect (without|with) `{needed}"):
        make_hooks({hook: values}, {})
    make_hooks({hook: {name: value for name, value in values.items() if name != field}}, {})
