"""When checkpoints are asked for, which are kept, and what a resume knows."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.metrics.best_checkpoints import BestCheckpoints
from hooks.training.ema import EMA
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import ConfigError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.hooks.checkpointing.simulated_run import SimulatedRun, Store, names, simulate, val
from tests.hooks.phases import run_phase
from tests.tasks import Points, described, experiment

TWO = Interval(2)
LABELS = {
    "accuracy": "best-val-accuracy",
    "loss": "best-val-loss",
    "score": "best-val-score",
    "error": "best-val-ema-top-1-error",
    "train": "best-train-loss",
}


TWO_METRICS = [
    {"val/accuracy": accuracy, "val/ema/top 1 error": error}
    for accuracy, error in ((0.5, 0.5), (0.9, 0.4), (0.7, 0.3), (0.6, 0.35))
]
AUTO = [{"val/loss": value, "val/accuracy": value, "val/f1": -value} for value in (3, 1, 2)]
AUTO_LOSS = [{"val/loss": value, "val/ema/loss": -value} for value in (3, 1, 2)]
SCORES = val("score", 3, 1, 2)
LEAST = {"score": 2}
BOTH = {"keep": 1, "best": ["val/accuracy", "val/ema/top 1 error"], "mode": ["max", "min"]}
BEGIN = {"every": TWO, "begin": 5, "save_last": False}
# The hook, an accuracy or metrics for each epoch, the saved epochs, the kept ones, and the best by
# metric
CASES: dict[str, tuple[dict[str, Any], list[Any], list[int], list[int], dict[str, int]]] = {
    "every so many epochs": ({"every": TWO, "save_last": False}, [None] * 5, [2, 4], [2, 4], {}),
    "begin is the first, as MMEngine's save_begin": (BEGIN, [None] * 10, [5, 7, 9], [5, 7, 9], {}),
    "the newest is kept": ({"keep": 1}, [None] * 5, [1, 2, 3, 4, 5], [5], {}),
    "the newest are kept": ({"keep": 3}, [None] * 5, [1, 2, 3, 4, 5], [3, 4, 5], {}),
    "all are kept": ({"keep": None}, [None] * 5, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], {}),
    "the best besides the newest": (
        *({"keep": 2, "best": "val/accuracy"}, [0.5, 0.9, 0.7, 0.8, 0.6]),
        *([1, 2, 3, 4, 5], [2, 4, 5], {"accuracy": 2}),
    ),
    "a best between two is saved": (
        *({"every": Interval(3), "best": "val/accuracy"}, [0.5, 0.4, 0.6, 0.7]),
        *([1, 3, 4], [3, 4], {"accuracy": 4}),
    ),
    "all are kept but a former best between two, as in MMEngine": (
        *(
            {"every": Interval(5), "keep": None, "best": "val/accuracy"},
            [0.1, 0.2, 0.3, 0.2, 0.1, 0.4, 0.5, 0.1, 0.2, 0.3],
        ),
        *([1, 2, 3, 5, 6, 7, 10], [5, 7, 10], {"accuracy": 7}),
    ),
    "an equal score is no better": (
        {"best": "val/accuracy"},
        [0.5, 0.5],
        [1, 2],
        [1, 2],
        {"accuracy": 1},
    ),
    "the first of equal losses is kept": (
        {"keep": 1, "best": "val/loss"},
        val("loss", 2, 1, 1, 3),
        [1, 2, 3, 4],
        [2, 4],
        {"loss": 2},
    ),
    "less of a loss is better": (
        {"best": "val/loss"},
        val("loss", 3, 1, 2),
        [1, 2, 3],
        [1, 2, 3],
        {"loss": 2},
    ),
    "a training metric is compared after training": (
        {"best": "train/loss"},
        [None],
        [1],
        [1],
        {"train": 1},
    ),
    "by default the best of those made anyway": (
        *({"every": TWO, "keep": 1}, [0.9, 0.7, 0.8, 0.6, 0.5, 0.5]),
        *([2, 4, 6], [2, 6], {"accuracy": 2}),
    ),
    "several metrics have a best each": (
        BOTH,
        TWO_METRICS,
        [1, 2, 3, 4],
        [2, 3, 4],
        {"accuracy": 2, "error": 3},
    ),
    "auto is the first metric besides the loss": (
        {"best": "auto"},
        AUTO,
        [1, 2, 3],
        [1, 2, 3],
        {"accuracy": 1},
    ),
    "auto is the loss if there is no other": (
        {"best": "auto"},
        AUTO_LOSS,
        [1, 2, 3],
        [1, 2, 3],
        {"loss": 2},
    ),
    "mode": ({"best": "val/score", "mode": "min"}, SCORES, [1, 2, 3], [1, 2, 3], LEAST),
    "a list of one": ({"best": "val/score", "mode": ["min"]}, SCORES, [1, 2, 3], [1, 2, 3], LEAST),
}


@pytest.mark.parametrize("case", CASES)
def test_saves_keeps_and_marks_the_expected_checkpoints(case: str) -> None:
    """The first metric has the label `best` too. A best between two checkpoints makes one where it
    was asked for."""
    hook, epochs, saved, kept, best = CASES[case]
    store = simulate(Checkpoint(**hook), *epochs).store
    assert (store.did("save"), store.stored) == (names(*saved), names(*kept))
    labels = {LABELS[metric]: names(epoch)[0] for metric, epoch in best.items()}
    assert store.labels == ({"best": next(iter(labels.values())), **labels} if labels else {})


def test_it_saves_at_steps_and_only_there() -> None:
    """Validation inside an epoch leaves the step count due, and must not save again."""
    run = SimulatedRun(Checkpoint(every=Interval(3, "steps"), save_last=False), accumulate=2)
    run.phase("train", 6, length=20)
    run.phase("val", 5)
    run.phase("train", 7, length=20)
    assert run.store.did("save") == ["step-00000003", "step-00000006"]


# Retention


def test_old_checkpoint_is_deleted_after_the_new_one_is_stored() -> None:
    """MMEngine deletes the old checkpoint, and the old best, before it writes the new one."""
    run = simulate(Checkpoint(keep=1, best="val/accuracy"), 0.5, 0.9, 0.7, 0.95)
    order = [call for call in run.store.log if call[0] in ("save", "delete")]
    assert order == [
        ("save", "epoch-0001"),
        ("save", "epoch-0002"),
        ("delete", "epoch-0001"),
        ("save", "epoch-0003"),
        ("save", "epoch-0004"),
        ("delete", "epoch-0003"),
        ("delete", "epoch-0002"),
    ]


# Best


def test_the_last_is_saved_before_validation_and_marked_after_it() -> None:
    """A validation that fails must not cost the epoch's checkpoint, and the best needs no second
    copy."""
    run = SimulatedRun(Checkpoint(best="val/accuracy"))
    run.phase("train", 2)
    assert run.store.log == [("save", "epoch-0001")]
    run.phase("val", 1, **{"val/accuracy": 0.5})
    assert run.store.log[1:] == [
        ("mark", "best-val-accuracy", "epoch-0001"),
        ("mark", "best", "epoch-0001"),
    ]


def test_metrics_that_differ_in_a_slash_have_a_label_each() -> None:
    run = SimulatedRun(Checkpoint(best=["val/a b", "val/a/b", "val/c"], mode="max", keep=None))
    values = {"val/a b": [1.0, 2.0, 3.0], "val/a/b": [1.0, 3.0, 2.0], "val/c": [3.0, 2.0, 1.0]}
    for epoch in range(3):
        run.phase("train", 1)
        run.phase("val", 1, **{name: of_epoch[epoch] for name, of_epoch in values.items()})
    labels = {
        "best-val/a b": "epoch-0003",
        "best-val/a/b": "epoch-0002",
        "best-val-c": "epoch-0001",
    }
    assert run.store.labels == {"best": "epoch-0003", **labels}


def test_best_checkpoint_has_the_optimizer(tmp_path: Path) -> None:
    """MMEngine's best checkpoint has none, so that nobody can go on from it."""
    store = CheckpointStore(Storage(tmp_path))
    hook = Checkpoint(every=Interval(100), save_last=False, best="val/loss")
    loop = Loop(Points(), experiment(epochs=1), {"checkpoint": hook}, RunContext(store=store))
    list(loop.run())
    assert loop.state.optimizer is not None
    expected = loop.state.optimizer.state_dict()["state"]
    stored = store.load(store.resolve("best"), "optimizer.pt")["optimizer"]["state"]
    assert len(stored) == len(expected) == 4
    for index, values in expected.items():
        assert torch.equal(stored[index]["momentum_buffer"], values["momentum_buffer"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("metric", ["val/accuracy", "val/loss"])
def test_non_finite_value_is_never_best(metric: str, value: float) -> None:
    run = SimulatedRun(Checkpoint(best=metric))
    for score in (value, 0.5, value):
        run.epoch(**{metric: score})
    assert run.store.labels["best"] == "epoch-0002"


def test_no_checkpoint_is_best_if_the_direction_is_unknown() -> None:
    run = SimulatedRun(Checkpoint())
    run.epoch(**{"val/score": 1.0})
    assert run.store.labels == {}
    known = SimulatedRun(Checkpoint())
    known.epoch(**{"val/score": 1.0, "val/loss": 1.0})
    assert known.store.labels == {"best": "epoch-0001", "best-val-loss": "epoch-0001"}


def test_score_of_another_run_is_forgotten() -> None:
    """A run that goes on from a checkpoint of another has none of its earlier ones: its best is the
    best of its own."""
    run = SimulatedRun(Checkpoint(best="val/accuracy"))
    for accuracy in (0.9, 0.5):
        run.epoch(accuracy)
    store = Store()
    store.save("epoch-0002", run.store.states["epoch-0002"])
    other = SimulatedRun(Checkpoint(best="val/accuracy"), store=store, epoch=2, step=4)
    other.restore("epoch-0002", copied_from="runs/first/checkpoints/epoch-0002")
    other.phase("val", 1, **{"val/accuracy": 0.5})
    assert store.labels["best"] == "epoch-0002"
    assert store.did("save") == ["epoch-0002"]


def test_a_checkpoint_of_another_run_is_the_best_until_the_run_has_a_better_one() -> None:
    """The first run names the metric; the one that continues from it chooses the same one itself."""
    run = SimulatedRun(Checkpoint(every=Interval(100), save_last=False, best="val/accuracy"))
    run.epoch(0.9)
    store = Store()
    store.save("epoch-0001", run.store.states["epoch-0001"])
    other = SimulatedRun(Checkpoint(), store=store, epoch=1, step=2)
    other.restore("epoch-0001", copied_from="runs/first/checkpoints/epoch-0001")
    other.epoch(0.5)
    assert store.labels["best"] == store.labels["best-val-accuracy"] == "epoch-0001"
    other.epoch(0.95)
    assert store.labels["best"] == "epoch-0003"


def test_metric_that_was_not_finite_may_be_missing_later() -> None:
    bests = BestCheckpoints(["val/map"], "max")
    state = State(phase="val", loaders={"val": ()})
    for metrics in ({"val/map": float("nan")}, {"val/loss": 1.0}):
        state.metrics = metrics
        bests.check_metrics(state)
        assert bests.update_scores(state) == []


def test_missing_metric_is_an_error_after_the_first_validation() -> None:
    """MMEngine raises a bare KeyError, after hours."""
    run = SimulatedRun(Checkpoint(best="val/acuracy", mode="max"))
    with pytest.raises(
        HookError,
        match=r"checkpoint\.best: there is no metric 'val/acuracy'; available: train/loss, val/accuracy",
    ):
        run.epoch(0.5)


# Which way is better


@pytest.mark.parametrize("metric", ["val/inaccuracy", "val/score", "val/top1_error", "val/"])
def test_unknown_direction_is_not_guessed(metric: str) -> None:
    with pytest.raises(ValueError, match=f"'{metric}' .*; .*set `mode: max` or `mode: min`"):
        Checkpoint(best=metric)
    Checkpoint(best=metric, mode="max")


def test_auto_is_chosen_alone() -> None:
    with pytest.raises(ValueError, match="set either auto"):
        Checkpoint(best=["auto", "val/loss"])


# Publishing


def test_last_and_best_are_published_once_each() -> None:
    run = simulate(Checkpoint(best="val/accuracy", publish=["model", "ema"]), 0.5, 0.9, 0.7)
    run.hooks[0].on_end(run.state)
    published = [call for call in run.store.log if call[0] == "publish"]
    places = {"model": "model", "ema": "ema"}
    assert published == [("publish", "epoch-0003", places), ("publish", "epoch-0002", places)]


@pytest.mark.parametrize(
    ("evaluate", "best", "averaged"),
    [
        ("ema", "val/loss", True),
        ("ema", None, True),
        ("both", "val/loss", False),
        ("both", "val/ema/loss", True),
        ("raw", "val/loss", False),
        ("ema", "train/loss", False),
    ],
)
def test_the_evaluated_weights_are_published(
    tmp_path: Path, evaluate: Any, best: str | None, averaged: bool
) -> None:
    """The averages, also those of SWA, where they were validated with; the raw weights under a name
    that says so."""
    store = CheckpointStore(Storage(tmp_path))
    hook = Checkpoint(best=best, publish=["state_dict", "raw_model"])
    ema = EMA(average="stochastic", evaluate=evaluate)
    loop = Loop(
        Points(), experiment(epochs=1), {"ema": ema, "checkpoint": hook}, RunContext(store=store)
    )
    list(loop.run())
    (file,) = (tmp_path / "published").iterdir()
    published = torch.load(file, weights_only=True)
    raw = store.load("epoch-0001", "model.pt")
    average = store.load("epoch-0001", "ema.pt")["model"]
    assert list(published) == ["model", "raw_model"]
    for name, weight in raw.items():
        assert torch.equal(published["raw_model"][name], weight)
        assert torch.equal(published["model"][name], average[name] if averaged else weight)
    assert any(not torch.equal(average[name], weight) for name, weight in raw.items())


@pytest.mark.parametrize(
    "publish", [["model", "emo"], ["rank-0000"], ["console"], ["optimiser"], ["ema"], []]
)
def test_unknown_parts_to_publish_are_refused_at_load(publish: list[str]) -> None:
    """It was found out when the training was over, and again at each resume."""
    with pytest.raises(ConfigError, match=r"hooks\.checkpoint"):
        described(hooks={"checkpoint": {"publish": publish}})


def test_only_the_hook_named_checkpoint_can_set_the_folder() -> None:
    described(hooks={"checkpoint": {"out_dir": "elsewhere"}})
    with pytest.raises(
        ConfigError,
        match=r"hooks\.slow: `out_dir` applies to all checkpoints of a run; set it in the hook named `checkpoint`",
    ):
        described(hooks={"slow": {"type": "checkpoint", "out_dir": "elsewhere"}})
    with pytest.raises(
        ConfigError, match=r"hooks\.slow: `background` applies to all checkpoints of a run"
    ):
        described(hooks={"slow": {"type": "checkpoint", "background": True}})


# After a resume


def _resume(run: SimulatedRun, epoch: int) -> SimulatedRun:
    """Another run, from the checkpoint after so many epochs."""
    hook = Checkpoint(
        **{
            field: getattr(run.hooks[0], field)
            for field in ("every", "keep", "best", "mode", "save_last")
        }
    )
    later = SimulatedRun(hook, store=run.store, epoch=epoch, step=2 * epoch)
    later.restore(names(epoch)[0])
    return later


def test_a_resumed_run_remembers_the_best() -> None:
    """Lightning forgot it, and marked the first epoch after a resume."""
    run = simulate(Checkpoint(keep=1, best="val/accuracy"), 0.5, 0.9, 0.7)
    later = _resume(run, 3)
    later.epoch(0.8)
    assert later.store.labels["best"] == "epoch-0002"
    assert later.store.stored == ["epoch-0002", "epoch-0004"]


def test_resumed_checkpoint_knows_that_it_is_the_best() -> None:
    """Its own name was not known when its state was written."""
    run = simulate(Checkpoint(every=Interval(100), keep=1, best="val/accuracy"), 0.5, 0.9)
    run.store.labels.clear()
    later = _resume(run, 2)
    assert later.store.labels == {"best": "epoch-0002", "best-val-accuracy": "epoch-0002"}
    later.epoch(0.8)
    assert later.store.stored == ["epoch-0002"]
    later.epoch(0.95)
    assert later.store.stored == ["epoch-0004"]


class _Pause(Hook):
    """Pauses the run once, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step == self.step:
            state.request_pause("a pause")


def _checkpoints_after_a_pause(
    root: Path, pause: int, hook: dict[str, Any], resumes: bool
) -> list[str]:
    store = CheckpointStore(Storage(root))

    def loop(step: int) -> Loop:
        hooks: dict[str, Hook] = {"checkpoint": Checkpoint(**hook), "pause": _Pause(step)}
        return Loop(Points(train=24), experiment(epochs=3), hooks, RunContext(store=store))

    list(loop(pause).run())
    if resumes:
        resumed = loop(0)
        resumed.restore(store.list_names()[-1])
        list(resumed.run())
    return store.list_names()


@pytest.mark.parametrize("keep", [1, 2, None])
@pytest.mark.parametrize("every", [Interval(1), Interval(2, "steps"), Interval(0)], ids=str)
def test_paused_run_ends_with_the_checkpoints_of_an_undisturbed_one(
    tmp_path: Path, keep: int | None, every: Interval
) -> None:
    hook = {"every": every, "keep": keep}
    undisturbed = _checkpoints_after_a_pause(tmp_path / "undisturbed", 0, hook, resumes=False)
    for step in (1, 4, 5, 7, 8):
        assert (
            _checkpoints_after_a_pause(tmp_path / str(step), step, hook, resumes=True)
            == undisturbed
        ), step


def test_checkpoints_after_the_restored_one_are_superseded() -> None:
    """Resuming at epoch 2 of 4: what came later goes with the next save, and its best is
    forgotten."""
    run = simulate(Checkpoint(keep=None, best="val/accuracy"), 0.5, 0.4, 0.9, 0.3)
    later = _resume(run, 2)
    assert later.store.labels["best"] == "epoch-0001"
    assert len(later.store.stored) == 4, "nothing goes before something new is stored"
    later.epoch(0.6)
    assert later.store.stored == ["epoch-0001", "epoch-0002", "epoch-0003"]
    assert later.store.labels["best"] == "epoch-0003"


def test_score_is_forgotten_if_the_mode_changes() -> None:
    run = SimulatedRun(Checkpoint(best="val/score", mode="max"))
    run.epoch(**{"val/score": 9.0})
    run.epoch(**{"val/score": 8.0})
    hook = Checkpoint(best="val/score", mode="min")
    later = SimulatedRun(hook, store=run.store, epoch=2, step=4)
    later.restore("epoch-0002")
    later.epoch(**{"val/score": 20.0})
    later.epoch(**{"val/score": 10.0})
    assert later.store.labels["best"] == "epoch-0004"


BOTH_METRICS = {"val/loss": 1.0, "val/accuracy": 0.9}


def _resume_with(store: Store, epoch: int, **fields: Any) -> SimulatedRun:
    """Another run with another setting, from the checkpoint after so many epochs."""
    later = SimulatedRun(Checkpoint(keep=1, **fields), store=store, epoch=epoch, step=2 * epoch)
    later.restore(names(epoch)[0])
    return later


def test_another_setting_after_a_resume_chooses_its_own_metric() -> None:
    """A new run with `auto` chooses the accuracy. The best by the loss is kept until then."""
    run = simulate(Checkpoint(keep=1, best="val/loss"), BOTH_METRICS, {"val/loss": 2.0})
    assert run.store.stored == names(1, 2)
    later = _resume_with(run.store, 2, best="auto")
    later.epoch()
    assert later.store.stored == names(1, 3)
    again = _resume_with(later.store, 3, best="auto")
    again.epoch(**{"val/loss": 3.0, "val/accuracy": 0.5})
    assert again.store.labels["best-val-accuracy"] == again.store.labels["best"] == "epoch-0004"
    assert again.store.labels["best-val-loss"] == "epoch-0001"
    again.epoch(**{"val/loss": 0.5, "val/accuracy": 0.4})
    assert again.store.stored == names(4, 5)
    assert again.store.labels["best"] == "epoch-0004"


def test_score_stays_if_another_setting_chooses_the_same_metric() -> None:
    run = simulate(Checkpoint(keep=1, best="val/accuracy"), BOTH_METRICS, {"val/accuracy": 0.5})
    later = _resume_with(run.store, 2, best="auto")
    later.epoch(**BOTH_METRICS)
    assert later.store.stored == names(1, 3)
    assert later.store.labels["best"] == "epoch-0001"


@pytest.mark.parametrize("best", [None, "auto"])
def test_the_same_setting_keeps_its_metric_after_a_resume(best: str | None) -> None:
    """An uninterrupted run chooses once, whatever later validations compute."""
    run = simulate(Checkpoint(keep=1, best=best), {"val/loss": 1.0}, {"val/loss": 2.0})
    later = _resume_with(run.store, 2, best=best)
    later.epoch(**{"val/loss": 1.5, "val/accuracy": 0.5})
    assert later.store.stored == names(1, 3)
    assert set(later.store.labels) == {"best", "best-val-loss"}


class _NoStore:
    """The store of a rank that is not the master and cannot see the master's disk."""

    def list_names(self) -> list[str]:
        return []

    def retain(self, owner: str, names: Sequence[str]) -> None: ...
    def mark(self, name: str, *labels: str, metric: str = "") -> None: ...
    def publish(self, name: str, parts: Mapping[str, str], folder: str) -> str:
        return ""

    def find_evaluated_weights(self, name: str) -> str:
        return ""


def test_all_ranks_decide_equally_after_a_resume() -> None:
    """What a rank sees of the disk must not change what it asks for."""
    run = simulate(Checkpoint(every=Interval(100), best="val/accuracy", save_last=False), 0.9, 0.5)
    saved = run.store.states["epoch-0001"]["checkpoint"]
    asked = []
    for store in (run.store, _NoStore(), None):
        hook = Checkpoint(every=Interval(100), best="val/accuracy", save_last=False)
        state = State(checkpoints=store, epoch=1, step=2)
        hook.load_state_dict(copy.deepcopy(saved))
        hook.on_load(state, {"name": "epoch-0001", "copied_from": None})
        hook.on_start(state)
        for accuracy in (0.8, 0.95):
            run_phase(hook, state, "train", [{}] * 2)
            run_phase(hook, state, "val", [{}], metrics={"val/accuracy": accuracy})
            asked.append(list(state.checkpoint_reasons))
            state.checkpoint_reasons.clear()
    assert asked == [[], ["best"]] * 3
