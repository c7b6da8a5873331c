"""When checkpoints are asked for, which are kept, and what a resume knows; on a store that records its calls."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from hooks import HookError, Rhythm, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import ConfigError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.hooks.phases import run_phase
from tests.tasks import Points, described, experiment


class Store:
    """A run's checkpoints in miniature: deletes what its owners gave up, and records every call in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.stored: list[str] = []
        self.states: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, list[str]] = {}
        self.labels: dict[str, str] = {}

    def save(self, name: str, states: dict[str, Any]) -> None:
        self.log.append(("save", name))
        self.stored = [*(known for known in self.stored if known != name), name]
        self.states[name] = copy.deepcopy(states)

    def retain(self, owner: str, names: Sequence[str]) -> None:
        assert set(names) <= set(self.stored), f"{owner} wants {names}, there are only {self.stored}"
        given_up = set(self.owners.get(owner, [])) - set(names)
        self.owners[owner] = list(names)
        wanted = {name for owned in self.owners.values() for name in owned}
        for name in sorted(given_up - wanted):
            self.log.append(("delete", name))
            self.stored = [known for known in self.stored if known != name]

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        assert name in self.stored
        self.log.extend(("mark", label, name) for label in labels)
        self.labels.update(dict.fromkeys(labels, name))

    def publish(self, name: str, parts: Mapping[str, str], folder: str) -> str:
        assert name in self.stored
        self.log.append(("publish", name, dict(parts)))
        return f"{folder}/{name}.pt"

    def judged(self, label: str) -> str:
        return "model"

    def names(self) -> list[str]:
        return list(self.stored)

    def did(self, verb: str) -> list[str]:
        """The names of all calls of one kind."""
        return [call[-1] if verb != "publish" else call[1] for call in self.log if call[0] == verb]


class Life:
    """A run with one or more checkpoint hooks, saving where the loop does: once, after the hooks of an event."""

    def __init__(self, *hooks: Checkpoint, store: Store | None = None, **fields: Any) -> None:
        self.hooks, self.store = hooks, store or Store()
        self.state = State(checkpoints=self.store, **fields)
        for index, hook in enumerate(hooks):
            hook.name = f"checkpoint{index or ''}"

    def restore(self, name: str) -> None:
        for hook in self.hooks:
            hook.load_state_dict(copy.deepcopy(self.store.states[name][hook.name]))
            hook.on_load(self.state, {"model": {}, "name": name})
            hook.on_start(self.state)

    def save_if_asked(self) -> None:
        state = self.state
        if not state.checkpoint_reasons:
            return
        state.checkpoint_reasons.clear()
        name = f"epoch-{state.epoch:04d}" if state.epoch_completed else f"step-{state.step:08d}"
        self.store.save(name, {hook.name: hook.state_dict() for hook in self.hooks})
        for hook in self.hooks:
            hook.on_save(state, {})
            hook.on_saved(state, f"s3://bucket/run/checkpoints/{name}")

    def phase(self, phase: str, iterations: int, length: int | None = None, **metrics: float) -> None:
        (first, *others) = self.hooks
        assert not others or iterations == 0
        run_phase(first, self.state, phase, [{}] * iterations, length=length, metrics=metrics, step_end=self._step_end)
        self.save_if_asked()

    def _step_end(self) -> None:
        if self.state.phase_iteration < self.state.phase_length:
            self.save_if_asked()

    def epoch(self, accuracy: float | None = None, **metrics: float) -> None:
        """One epoch of two steps, and its validation."""
        self.phase("train", 2, **{"train/loss": 1.0})
        if accuracy is not None:
            metrics["val/accuracy"] = accuracy
        if metrics:
            self.phase("val", 1, **metrics)


# Rhythm


def test_it_saves_at_epochs() -> None:
    life = Life(Checkpoint(every=Rhythm(2), save_last=False))
    for _ in range(5):
        life.epoch()
    assert life.store.did("save") == ["epoch-0002", "epoch-0004"]


def test_it_saves_at_steps_and_only_there() -> None:
    """Validation inside an epoch leaves the step count due, and must not save again."""
    life = Life(Checkpoint(every=Rhythm(3, "steps"), save_last=False), accumulate=2)
    life.phase("train", 6, length=20)
    life.phase("val", 5)
    life.phase("train", 7, length=20)
    assert life.store.did("save") == ["step-00000003", "step-00000006"]


def test_begin_is_the_first_that_may_have_one() -> None:
    """MMEngine's save_begin: 5 with every 2 gives 5, 7, 9."""
    life = Life(Checkpoint(every=Rhythm(2), begin=5, save_last=False))
    for _ in range(10):
        life.epoch()
    assert life.store.did("save") == ["epoch-0005", "epoch-0007", "epoch-0009"]


@pytest.mark.parametrize(("save_last", "saved"), [(True, ["epoch-0002", "epoch-0003"]), (False, ["epoch-0002"])])
def test_the_end_of_training_is_saved_though_it_is_not_due(save_last: bool, saved: list[str]) -> None:
    life = Life(Checkpoint(every=Rhythm(2), save_last=save_last), max_epochs=3)
    for _ in range(3):
        life.epoch(0.5)
    assert life.store.did("save") == saved


def test_the_last_step_is_saved_where_steps_end_the_run() -> None:
    life = Life(Checkpoint(every=Rhythm(1)), max_steps=3)
    life.phase("train", 3, length=10)
    assert life.store.did("save") == ["step-00000003"]


def test_the_last_is_not_saved_twice() -> None:
    life = Life(Checkpoint(every=Rhythm(2, "steps")), max_steps=4)
    life.phase("train", 4, length=10)
    assert life.store.did("save") == ["step-00000002", "step-00000004"]


def test_a_rhythm_of_zero_never_saves() -> None:
    life = Life(Checkpoint(every=Rhythm(0), save_last=False), max_epochs=1)
    life.epoch(0.5)
    assert life.store.log == []


# Retention


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (3, [3, 4, 5]), (None, [1, 2, 3, 4, 5])])
def test_the_newest_are_kept(keep: int | None, kept: list[int]) -> None:
    life = Life(Checkpoint(keep=keep))
    for _ in range(5):
        life.epoch()
    assert life.store.stored == [f"epoch-{epoch:04d}" for epoch in kept]


def test_the_old_goes_only_after_the_new_is_stored() -> None:
    """MMEngine deletes the old checkpoint, and the old best, before it writes the new one."""
    life = Life(Checkpoint(keep=1, best="val/accuracy"))
    for accuracy in (0.5, 0.9, 0.7, 0.95):
        life.epoch(accuracy)
    order = [call for call in life.store.log if call[0] in ("save", "delete")]
    assert order == [
        ("save", "epoch-0001"),
        ("save", "epoch-0002"),
        ("delete", "epoch-0001"),
        ("save", "epoch-0003"),
        ("save", "epoch-0004"),
        ("delete", "epoch-0003"),
        ("delete", "epoch-0002"),
    ]


def test_the_best_is_kept_besides_the_newest() -> None:
    life = Life(Checkpoint(keep=2, best="val/accuracy"))
    for accuracy in (0.5, 0.9, 0.7, 0.8, 0.6):
        life.epoch(accuracy)
    assert life.store.stored == ["epoch-0002", "epoch-0004", "epoch-0005"]


def test_checkpoints_of_others_are_left_to_them() -> None:
    """A run's own save, and one of another hook, are not in this hook's count and not in its hands."""
    life = Life(Checkpoint(keep=1))
    life.epoch()
    life.state.request_checkpoint("nan")
    life.state.step += 1
    life.state.epoch_completed = False
    life.save_if_asked()
    life.epoch()
    assert life.store.stored == ["step-00000003", "epoch-0002"]
    assert life.store.owners == {"checkpoint": ["epoch-0002"]}


def test_two_hooks_keep_their_own() -> None:
    """Lightning's and MMEngine's hooks of one class overwrote each other's state."""
    life = Life(Checkpoint(every=Rhythm(1), keep=1), Checkpoint(every=Rhythm(2), keep=None))
    for _ in range(5):
        state = life.state
        state.phase, state.epoch, state.step, state.epoch_completed = "train", state.epoch + 1, state.step + 2, True
        for hook in life.hooks:
            hook.on_phase_end(state)
        life.save_if_asked()
    assert life.store.stored == ["epoch-0002", "epoch-0004", "epoch-0005"]
    assert life.store.owners == {"checkpoint": ["epoch-0005"], "checkpoint1": ["epoch-0002", "epoch-0004"]}


# Best


def test_the_last_is_saved_before_validation_and_marked_after_it() -> None:
    """A validation that fails must not cost the epoch's checkpoint, and the best needs no second copy."""
    life = Life(Checkpoint(best="val/accuracy"))
    life.phase("train", 2)
    assert life.store.log == [("save", "epoch-0001")]
    life.phase("val", 1, **{"val/accuracy": 0.5})
    assert life.store.log[1:] == [("mark", "best-val-accuracy", "epoch-0001"), ("mark", "best", "epoch-0001")]


def test_a_best_between_two_checkpoints_is_saved() -> None:
    life = Life(Checkpoint(every=Rhythm(3), best="val/accuracy"))
    for accuracy in (0.5, 0.4, 0.6, 0.7):
        life.epoch(accuracy)
    assert life.store.did("save") == ["epoch-0001", "epoch-0003", "epoch-0004"]
    assert life.store.labels == {"best": "epoch-0004", "best-val-accuracy": "epoch-0004"}


def test_a_best_in_the_middle_of_an_epoch_is_saved() -> None:
    life = Life(Checkpoint(best="val/accuracy"))
    life.phase("train", 5, length=10)
    life.phase("val", 1, **{"val/accuracy": 0.5})
    assert life.store.labels["best"] == "step-00000005"


def test_the_best_has_its_optimizer(tmp_path: Path) -> None:
    """MMEngine's best checkpoint has none, so that nobody can go on from it."""
    store = CheckpointStore(Storage(tmp_path))
    hook = Checkpoint(every=Rhythm(100), save_last=False, best="val/loss")
    loop = Loop(Points(), experiment(epochs=1), {"checkpoint": hook}, RunContext(store=store))
    list(loop.run())
    assert loop.state.optimizer is not None
    expected = loop.state.optimizer.state_dict()["state"]
    stored = store.load(store.resolve("best"), "optimizer.pt")["optimizer"]["state"]
    assert len(stored) == len(expected) == 4
    for index, values in expected.items():
        assert torch.equal(stored[index]["momentum_buffer"], values["momentum_buffer"])


def test_an_equal_score_is_no_better() -> None:
    life = Life(Checkpoint(best="val/accuracy"))
    life.epoch(0.5)
    life.epoch(0.5)
    assert life.store.labels["best"] == "epoch-0001"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("metric", ["val/accuracy", "val/loss"])
def test_what_is_not_finite_is_never_best(metric: str, value: float) -> None:
    life = Life(Checkpoint(best=metric))
    for score in (value, 0.5, value):
        life.epoch(**{metric: score})
    assert life.store.labels["best"] == "epoch-0002"


def test_less_is_better_for_a_loss() -> None:
    life = Life(Checkpoint(best="val/loss"))
    for loss in (3.0, 1.0, 2.0):
        life.epoch(**{"val/loss": loss})
    assert life.store.labels["best"] == "epoch-0002"


def test_several_metrics_have_a_best_each() -> None:
    life = Life(Checkpoint(keep=1, best=["val/accuracy", "val/ema/top 1 error"], mode=["max", "min"]))
    for accuracy, error in ((0.5, 0.3), (0.9, 0.4), (0.7, 0.5)):
        life.epoch(**{"val/accuracy": accuracy, "val/ema/top 1 error": error})
    assert life.store.labels == {
        "best": "epoch-0002",
        "best-val-accuracy": "epoch-0002",
        "best-val-ema-top-1-error": "epoch-0001",
    }
    assert life.store.stored == ["epoch-0001", "epoch-0002", "epoch-0003"]


def test_a_training_metric_is_judged_after_training() -> None:
    life = Life(Checkpoint(best="train/loss"))
    life.epoch()
    assert life.store.labels["best"] == "epoch-0001"


def test_validation_alone_works_with_several_metrics() -> None:
    """MMEngine raises KeyError: it makes its tables in before_train."""
    life = Life(Checkpoint(best=["val/accuracy", "val/loss"]))
    life.phase("val", 1, **{"val/accuracy": 0.5, "val/loss": 1.0})
    assert life.store.did("mark") == ["step-00000000"] * 3


def test_auto_is_the_first_metric_of_val() -> None:
    """As MMEngine's, whose evaluators know no loss."""
    life = Life(Checkpoint(best="auto"))
    for loss in (3.0, 1.0, 2.0):
        life.epoch(**{"val/loss": loss, "val/accuracy": loss, "val/f1": -loss})
    assert life.store.labels == {"best": "epoch-0001", "best-val-accuracy": "epoch-0001"}


def test_auto_is_the_loss_where_val_has_no_other_metric() -> None:
    life = Life(Checkpoint(best="auto"))
    for loss in (3.0, 1.0, 2.0):
        life.epoch(**{"val/loss": loss, "val/ema/loss": -loss})
    assert life.store.labels == {"best": "epoch-0002", "best-val-loss": "epoch-0002"}


def test_the_best_of_those_made_anyway_is_kept_where_nothing_is_said() -> None:
    """A metric that gets better between two checkpoints makes none: the rhythm said how many there are to be."""
    life = Life(Checkpoint(every=Rhythm(2), keep=1))
    for accuracy in (0.9, 0.7, 0.8, 0.6, 0.5, 0.5):
        life.epoch(accuracy)
    assert life.store.did("save") == ["epoch-0002", "epoch-0004", "epoch-0006"]
    assert life.store.labels == {"best": "epoch-0002", "best-val-accuracy": "epoch-0002"}
    assert life.store.stored == ["epoch-0002", "epoch-0006"]


def test_it_is_the_best_by_what_the_experiment_judges_by() -> None:
    life = Life(Checkpoint(), config={"sweep": {"metric": "val/score", "mode": "min"}})
    for score in (3.0, 1.0, 2.0):
        life.epoch(score, **{"val/score": score})
    assert life.store.labels == {"best": "epoch-0002", "best-val-score": "epoch-0002"}


def test_nothing_is_called_the_best_where_nobody_said_which_way_is_better() -> None:
    life = Life(Checkpoint())
    life.epoch(**{"val/score": 1.0})
    assert life.store.labels == {}
    known = Life(Checkpoint())
    known.epoch(**{"val/score": 1.0, "val/loss": 1.0})
    assert known.store.labels == {"best": "epoch-0001", "best-val-loss": "epoch-0001"}


def test_what_another_run_reached_is_not_to_be_beaten() -> None:
    """A run that goes on from a checkpoint of another has none of its earlier ones: its best is the best of its own."""
    life = Life(Checkpoint(best="val/accuracy"), name="first")
    life.hooks[0].on_start(life.state)
    for accuracy in (0.9, 0.5):
        life.epoch(accuracy)
    store = Store()
    store.save("epoch-0002", life.store.states["epoch-0002"])
    other = Life(Checkpoint(best="val/accuracy"), store=store, name="second", epoch=2, step=4)
    other.restore("epoch-0002")
    other.phase("val", 1, **{"val/accuracy": 0.5})
    assert store.labels["best"] == "epoch-0002"
    assert store.did("save") == ["epoch-0002"]


def test_a_missing_metric_is_said_after_the_first_validation() -> None:
    """MMEngine raises a bare KeyError, after hours."""
    life = Life(Checkpoint(best="val/acuracy", mode="max"))
    with pytest.raises(HookError, match="no metric 'val/acuracy' after the val phase; there are: train/loss, val/accuracy"):
        life.epoch(0.5)


def test_a_metric_without_a_phase_is_said_too() -> None:
    with pytest.raises(HookError, match="no metric 'accuracy'"):
        Life(Checkpoint(best="accuracy")).epoch(0.5)


def test_auto_needs_a_metric() -> None:
    life = Life(Checkpoint(best="auto"))
    life.phase("train", 2, **{"train/loss": 1.0})
    with pytest.raises(HookError, match="auto found no metric of val; there are: train/loss"):
        life.phase("val", 1)


# Which way is better


@pytest.mark.parametrize("metric", ["val/inaccuracy", "val/score", "val/top1_error", "val/"])
def test_what_is_better_is_not_guessed(metric: str) -> None:
    with pytest.raises(ValueError, match=f"whether more or less of '{metric}' is better; write mode: max or mode: min"):
        Checkpoint(best=metric)
    Checkpoint(best=metric, mode="max")


def test_mmengines_rule_is_read_as_mode() -> None:
    for said in ({"rule": "less"}, {"mode": "min"}, {"rule": ["less"]}):
        life = Life(Checkpoint(best="val/score", **said))
        for score in (3.0, 1.0, 2.0):
            life.epoch(**{"val/score": score})
        assert life.store.labels["best"] == "epoch-0002"
    with pytest.raises(ValueError, match="both mode=max and rule=greater"):
        Checkpoint(best="val/score", mode="max", rule="greater")


def test_auto_refuses_a_name_it_cannot_judge() -> None:
    with pytest.raises(HookError, match="'val/score' is better; write mode: max or mode: min"):
        Life(Checkpoint(best="auto")).epoch(**{"val/score": 1.0})
    Life(Checkpoint(best="auto", mode="min")).epoch(**{"val/score": 1.0})


def test_auto_hears_what_the_sweep_says() -> None:
    sweep = {"metric": "val/score", "mode": "min"}
    life = Life(Checkpoint(best="auto"), config={"sweep": sweep})
    for score in (2.0, 1.0):
        life.epoch(**{"val/loss": 1.0, "val/score": score})
    assert life.store.labels["best-val-score"] == "epoch-0002"


def test_modes_must_fit_the_metrics() -> None:
    with pytest.raises(ValueError, match="2 modes are said for 1 metrics"):
        Checkpoint(best=["val/loss"], mode=["min", "max"])
    with pytest.raises(ValueError, match="auto stands alone"):
        Checkpoint(best=["auto", "val/loss"])


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"begin": -1}, {"rule": "max"}, {"mode": "greater"}, {"every": "often"}, {"best": "val/score"}])
def test_yaml_with_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Checkpoint).validate_python(wrong)


def test_yaml_becomes_a_hook() -> None:
    hook = TypeAdapter(Checkpoint).validate_python({"every": "100 steps", "keep": None, "best": "val/loss", "publish": ["model"]})
    assert (hook.every, hook.keep, hook.publish) == (Rhythm(100, "steps"), None, ["model"])


# Publishing


def test_last_and_best_are_published_once_each() -> None:
    life = Life(Checkpoint(best="val/accuracy", publish=["model", "ema"]))
    for accuracy in (0.5, 0.9, 0.7):
        life.epoch(accuracy)
    life.hooks[0].on_end(life.state)
    published = [call for call in life.store.log if call[0] == "publish"]
    places = {"model": "model", "ema": "ema"}
    assert published == [("publish", "epoch-0003", places), ("publish", "epoch-0002", places)]


@pytest.mark.parametrize(
    ("evaluate", "best", "averaged"),
    [("ema", "val/loss", True), ("ema", None, True), ("both", "val/loss", False), ("both", "val/ema/loss", True), ("raw", "val/loss", False), ("ema", "train/loss", False)],
)
def test_what_was_judged_is_what_is_published(tmp_path: Path, evaluate: Any, best: str | None, averaged: bool) -> None:
    """The averages, also those of SWA, where they were validated with; the raw weights under a name that says so."""
    store = CheckpointStore(Storage(tmp_path))
    hook = Checkpoint(best=best, publish=["state_dict", "raw_model"])
    ema = EMA(average="stochastic", evaluate=evaluate)
    loop = Loop(Points(), experiment(epochs=1), {"ema": ema, "checkpoint": hook}, RunContext(store=store))
    list(loop.run())
    (file,) = (tmp_path / "published").iterdir()
    published = torch.load(file, weights_only=True)
    raw, average = store.load("epoch-0001", "model.pt"), store.load("epoch-0001", "ema.pt")["model"]
    assert list(published) == ["model", "raw_model"]
    for name, weight in raw.items():
        assert torch.equal(published["raw_model"][name], weight)
        assert torch.equal(published["model"][name], average[name] if averaged else weight)
    assert any(not torch.equal(average[name], weight) for name, weight in raw.items())


@pytest.mark.parametrize("publish", [["model", "emo"], ["rank-0000"], ["console"], ["optimiser"], ["ema"], []])
def test_what_cannot_be_published_is_refused_at_load(publish: list[str]) -> None:
    """It was found out when the training was over, and again at each resume."""
    with pytest.raises(ConfigError, match=r"hooks\.checkpoint"):
        described(hooks={"checkpoint": {"publish": publish}})


def test_another_folder_is_said_by_the_hook_called_checkpoint() -> None:
    described(hooks={"checkpoint": {"out_dir": "elsewhere"}})
    with pytest.raises(ConfigError, match=r"hooks\.slow: out_dir is read of the hook called checkpoint alone"):
        described(hooks={"slow": {"type": "checkpoint", "out_dir": "elsewhere"}})
    with pytest.raises(ConfigError, match=r"hooks\.slow: background is read of the hook called checkpoint alone"):
        described(hooks={"slow": {"type": "checkpoint", "background": True}})
    with pytest.raises(ConfigError, match=r"background: is read by nothing, got True: it needs every, save_last or best"):
        described(hooks={"checkpoint": {"every": 0, "save_last": False, "background": True}})


def test_what_can_be_published_is_accepted_at_load() -> None:
    hooks = {"slow": {"type": "ema"}, "checkpoint": {"publish": ["state_dict", "model", "raw_model", "optimizer", "hooks", "slow"]}}
    described(hooks=hooks)
    with pytest.raises(ConfigError, match="publish: a checkpoint has no ema; it has model, raw_model, optimizer, hooks, slow"):
        described(hooks={**hooks, "checkpoint": {"publish": ["ema"]}})


def test_a_metric_that_never_improved_is_not_published() -> None:
    """MMEngine publishes None."""
    life = Life(Checkpoint(best=["val/accuracy", "val/loss"], publish=["model"]))
    life.epoch(**{"val/accuracy": 0.5, "val/loss": float("nan")})
    life.hooks[0].on_end(life.state)
    assert life.store.did("publish") == ["epoch-0001"]


def test_nothing_is_published_unasked_or_where_nothing_was_saved() -> None:
    life = Life(Checkpoint())
    life.epoch()
    life.hooks[0].on_end(life.state)
    empty = Life(Checkpoint(publish=["model"], best="val/loss"))
    empty.hooks[0].on_end(empty.state)
    assert life.store.did("publish") == empty.store.did("publish") == []


# Resuming


def _resume(life: Life, name: str, **fields: Any) -> Life:
    hook = Checkpoint(**{field: getattr(life.hooks[0], field) for field in ("every", "keep", "best", "mode", "save_last")})
    later = Life(hook, store=life.store, **fields)
    later.restore(name)
    return later


def test_a_resumed_run_remembers_the_best() -> None:
    """Lightning forgot it, and marked the first epoch after a resume."""
    life = Life(Checkpoint(keep=1, best="val/accuracy"))
    for accuracy in (0.5, 0.9, 0.7):
        life.epoch(accuracy)
    later = _resume(life, "epoch-0003", epoch=3, step=6)
    later.epoch(0.8)
    assert later.store.labels["best"] == "epoch-0002"
    assert later.store.stored == ["epoch-0002", "epoch-0004"]


def test_the_rhythm_goes_on_after_a_resume() -> None:
    """ClassyVision counts phases from where it resumes."""
    life = Life(Checkpoint(every=Rhythm(2), best="val/accuracy", save_last=False))
    for accuracy in (0.1, 0.2, 0.9):
        life.epoch(accuracy)
    later = _resume(life, "epoch-0003", epoch=3, step=6)
    for _ in range(3):
        later.epoch(0.5)
    assert later.store.did("save")[-2:] == ["epoch-0004", "epoch-0006"]


def test_a_checkpoint_made_for_its_score_knows_that_it_is_the_best() -> None:
    """Its own name was not known when its state was written."""
    life = Life(Checkpoint(every=Rhythm(100), keep=1, best="val/accuracy"))
    for accuracy in (0.5, 0.9):
        life.epoch(accuracy)
    life.store.labels.clear()
    later = _resume(life, "epoch-0002", epoch=2, step=4)
    assert later.store.labels == {"best": "epoch-0002", "best-val-accuracy": "epoch-0002"}
    later.epoch(0.8)
    assert later.store.stored == ["epoch-0002"]
    later.epoch(0.95)
    assert later.store.stored == ["epoch-0004"]


def test_the_restored_checkpoint_counts_among_the_newest() -> None:
    life = Life(Checkpoint(keep=2))
    for _ in range(3):
        life.epoch()
    later = _resume(life, "epoch-0003", epoch=3, step=6)
    later.epoch()
    assert later.store.stored == ["epoch-0003", "epoch-0004"]


def test_what_was_made_after_the_restored_one_is_superseded() -> None:
    """Resuming at epoch 2 of 4: what came later goes with the next save, and its best is forgotten."""
    life = Life(Checkpoint(keep=None, best="val/accuracy"))
    for accuracy in (0.5, 0.4, 0.9, 0.3):
        life.epoch(accuracy)
    later = _resume(life, "epoch-0002", epoch=2, step=4)
    assert later.store.labels["best"] == "epoch-0001"
    assert len(later.store.stored) == 4, "nothing goes before something new is stored"
    later.epoch(0.6)
    assert later.store.stored == ["epoch-0001", "epoch-0002", "epoch-0003"]
    assert later.store.labels["best"] == "epoch-0003"


def test_a_best_that_is_gone_is_not_asked_for() -> None:
    life = Life(Checkpoint(keep=1, best="val/accuracy"))
    for accuracy in (0.9, 0.5):
        life.epoch(accuracy)
    life.store.stored.remove("epoch-0001")
    later = _resume(life, "epoch-0002", epoch=2, step=4)
    later.epoch(0.8)
    assert later.store.stored == ["epoch-0003"]


def test_a_score_is_forgotten_when_the_other_way_is_better() -> None:
    life = Life(Checkpoint(best="val/score", mode="max"))
    life.epoch(**{"val/score": 9.0})
    life.epoch(**{"val/score": 8.0})
    hook = Checkpoint(best="val/score", mode="min")
    later = Life(hook, store=life.store, epoch=2, step=4)
    later.restore("epoch-0002")
    later.epoch(**{"val/score": 20.0})
    later.epoch(**{"val/score": 10.0})
    assert later.store.labels["best"] == "epoch-0004"


def test_the_best_of_an_earlier_versions_checkpoint_is_remembered() -> None:
    hook = Checkpoint(best="val/score", mode="min")
    hook.load_state_dict({"names": [], "bests": {"val/score": {"rule": "less", "score": 2.0, "name": "epoch-0001"}}, "pending": []})
    assert hook.state_dict()["bests"] == {"val/score": {"mode": "min", "score": 2.0, "name": "epoch-0001"}}


def test_auto_resumes_with_the_metric_it_chose() -> None:
    life = Life(Checkpoint(best="auto"))
    for accuracy in (0.9, 0.5):
        life.epoch(accuracy)
    later = _resume(life, "epoch-0002", epoch=2, step=4)
    later.epoch(**{"val/loss": 0.1, "val/accuracy": 0.6})
    assert later.store.labels["best"] == "epoch-0001"


def test_a_run_begun_from_another_runs_checkpoint_owns_none_of_its_files() -> None:
    life = Life(Checkpoint(best="val/accuracy"))
    for accuracy in (0.5, 0.6):
        life.epoch(accuracy)
    hook = Checkpoint(best="val/accuracy")
    other = Life(hook, epoch=2, step=4)
    other.store.states = life.store.states
    other.restore("epoch-0002")
    other.epoch(0.7)
    assert other.store.stored == ["epoch-0003"]
    assert other.store.labels["best"] == "epoch-0003"


def test_the_state_loads_with_weights_only() -> None:
    life = Life(Checkpoint(best="val/accuracy"))
    life.epoch(0.5)
    state = life.hooks[0].state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == state


# Ranks


class _NoStore:
    """The store of a rank that is not the master and cannot see the master's disk."""

    def names(self) -> list[str]:
        return []

    def retain(self, owner: str, names: Sequence[str]) -> None: ...
    def mark(self, name: str, *labels: str, metric: str = "") -> None: ...
    def publish(self, name: str, parts: Mapping[str, str], folder: str) -> str:
        return ""

    def judged(self, label: str) -> str:
        return ""


def test_all_ranks_decide_alike_after_a_resume() -> None:
    """What a rank sees of the disk must not change what it asks for."""
    life = Life(Checkpoint(every=Rhythm(100), best="val/accuracy", save_last=False))
    for accuracy in (0.9, 0.5):
        life.epoch(accuracy)
    saved = life.store.states["epoch-0001"]["checkpoint"]
    asked = []
    for store in (life.store, _NoStore(), None):
        hook, state = Checkpoint(every=Rhythm(100), best="val/accuracy", save_last=False), State(checkpoints=store, epoch=1, step=2)
        hook.load_state_dict(copy.deepcopy(saved))
        hook.on_load(state, {"name": "epoch-0001"})
        hook.on_start(state)
        for accuracy in (0.8, 0.95):
            run_phase(hook, state, "train", [{}] * 2)
            run_phase(hook, state, "val", [{}], metrics={"val/accuracy": accuracy})
            asked.append(list(state.checkpoint_reasons))
            state.checkpoint_reasons.clear()
    assert asked == [[], ["best"]] * 3
