"""The numbers of MMEngine and iMIX, by their rules, against those of the settings that the pages on
migrating give.

The rules are re-derived here from the sources of both. Tests with the marker `originals` compare
the rules of MMEngine with MMEngine itself: `make test-originals`.
"""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from experiments.digits import Digits
from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.logs.console import Console
from hooks.metrics.direction import find_direction
from hooks.training.early_stopping import EarlyStopping
from hooks.training.ema import EMA
from orchestrator import run
from orchestrator.experiment.make_hooks import make_hook
from orchestrator.experiment.optim.parameter_groups import make_parameter_groups, read_groups
from orchestrator.loop.data.sampling import ShardedSampler, default_order
from orchestrator.testing import train as train_in_loop
from tests.hooks.checkpointing.simulated_run import simulate
from tests.hooks.training.averages import averages
from tests.hooks.training.steps import batches, new_state, small_model, train
from tests.tasks import Points, described
from tests.test_migrating import blocks, hooks_of, migrated, read_settings, section

STEPS = 25
EPOCH = 26
"""Steps in an epoch of the runs below."""


# The loss


LOSSES = {"loss_cls": 0.5, "acc": 0.25, "aux_loss": 2.0}
"""What a model returns for a batch."""


def loss_in_mmengine(entries: Mapping[str, float]) -> float:
    """Return the sum of the entries that have `loss` in their names; the others are only logged."""
    return sum(value for name, value in entries.items() if "loss" in name)


@dataclass
class SeveralLosses(Points):
    """Returns losses of the same values, some of them as terms of the loss."""

    terms: tuple[str, ...] = ()

    def loss(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        zero = super().loss(output, batch) * 0
        return {name: zero + LOSSES[name] for name in self.terms}


@pytest.mark.parametrize(
    ("terms", "is_same"),
    [(("loss_cls", "acc", "aux_loss"), False), (("loss_cls", "aux_loss"), True)],
)
def test_terms_of_a_loss_are_those_of_mmengine_without_its_other_entries(
    terms: tuple[str, ...], *, is_same: bool
) -> None:
    assert "without `loss` in its name" in " ".join(section("MMEngine", "A model").split())
    rows = train_in_loop(task=SeveralLosses(terms=terms), steps=1).rows
    row = next(row for row in rows if row["phase"] == "train")
    assert (row["loss"] == pytest.approx(loss_in_mmengine(LOSSES))) == is_same
    assert [row[name] for name in terms] == [LOSSES[name] for name in terms]


# Averages of the weights


class MicroBatchAverage(Hook):
    """MMEngine's EMAHook and iMIX's EMAIterHook: an update after each micro-batch, from micro-batch
    `begin` on.

    MMEngine copies the weights until then and in the first update. iMIX begins with the initial
    weights instead, which is a begin of 0.
    """

    def __init__(self, module: nn.Module, decay: float, begin: int) -> None:
        self.decay, self.begin = decay, begin
        self.values = copy_weights(module)

    def on_step(self, state: State) -> None:
        weights = copy_weights(state.module)
        if state.iteration <= self.begin:
            self.values = weights
            return
        for average, weight in zip(self.values, weights, strict=True):
            average.lerp_(weight, 1 - self.decay)


def copy_weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().double() for parameter in module.parameters()]


def average_by_both(ema: Hook, decay: float, begin: int) -> tuple[EMA, State, MicroBatchAverage]:
    """Train with both averages, and two micro-batches in a step, until both micro-batches have seen
    the last step."""
    assert isinstance(ema, EMA)
    module = small_model()
    state, theirs = new_state(module, accumulate=2), MicroBatchAverage(module, decay, begin)
    ema.on_start(state)
    train(state, {"ema": ema, "theirs": theirs}, batches(2 * STEPS + 1))
    assert state.step == STEPS
    return ema, state, theirs


def test_average_of_the_mmengine_page_is_that_of_mmengine(tmp_path: Path) -> None:
    """Its second epoch begins after 22 steps of two micro-batches."""
    assert math.ceil(len(Digits().data()["train"]) / 32) == 2 * 22  # type: ignore[arg-type]
    ema = hooks_of(migrated("MMEngine", tmp_path))["ema"]
    ours, state, theirs = average_by_both(ema, 1 - 0.0002, begin=2 * 22 + 1)
    assert_same(averages(ours, state), theirs.values)


def test_average_of_the_imix_page_is_that_of_imix(tmp_path: Path) -> None:
    ema = hooks_of(migrated("iMIX", tmp_path))["ema"]
    assert isinstance(ema, EMA)
    assert ema.buffers == "ema"
    ours, state, theirs = average_by_both(ema, 0.999, begin=0)
    assert_same(averages(ours, state), theirs.values)


def assert_same(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    for average, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(average.double(), expected, rtol=1e-5, atol=1e-6)


def test_averages_differ_without_the_rule_of_the_page() -> None:
    """The comparison above is sharp: one decay a step, or a later begin, gives another average."""
    for wrong in (EMA(decay=0.999, begin=Interval(0, "steps")), EMA(decay=0.998001)):
        ours, state, theirs = average_by_both(wrong, 0.999, begin=0)
        with pytest.raises(AssertionError):
            assert_same(averages(ours, state), theirs.values)


def test_subclass_with_a_gamma_of_its_own_has_the_weights_of_mmdetection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ExpMomentumEMA: momentum_n = (1 - momentum) * exp(-(1 + n) / gamma) + momentum."""
    assert "`gamma: float = 2000.0`" in section("MMEngine", "Hooks")
    (tmp_path / "own_average.py").write_text(OWN_AVERAGE)
    monkeypatch.syspath_prepend(tmp_path)
    entry = {"type": "own_average:ExpMomentumEMA", "gamma": 50, "decay": 0.9998}
    ema = make_hook("ema", entry).hook
    assert isinstance(ema, EMA)
    assert ema.compute_coefficient(7) == pytest.approx(0.9998 * math.exp(-8 / 50) + 0.0002)


OWN_AVERAGE = """
import math
from dataclasses import dataclass

from hooks.training.ema import EMA


@dataclass
class ExpMomentumEMA(EMA):
    gamma: float = 2000.0

    def compute_coefficient(self, updates: int) -> float:
        return self.decay * math.exp(-(1 + updates) / self.gamma) + 1 - self.decay
"""


# Learning rates


def linear_factor(step: int, end: int) -> float:
    return min(1.0, 1 / 3 + 2 / 3 * step / (end - 1))


def constant_factor(step: int, end: int) -> float:
    return 0.1 if step < end - 1 else 1.0


def poly_factor(step: int, end: int) -> float:
    """PolyLR with power 1 and eta_min 0."""
    return max(0.0, 1 - step / (end - 1))


def cosine_factor(step: int, end: int) -> float:
    """CosineAnnealingLR, which keeps its rate from the last step before the end on."""
    return 0.05 + 0.95 * (1 + math.cos(math.pi * min(step, end - 1) / end)) / 2


def exponential_factor(step: int, end: int) -> float:
    return float(0.97 ** min(step, end - 1))


RULES: dict[str, tuple[Callable[[int, int], float], dict[str, float]]] = {
    "LinearLR": (linear_factor, {}),
    "ConstantLR": (constant_factor, {"factor": 0.1}),
    "PolyLR": (poly_factor, {}),
    "CosineAnnealingLR": (cosine_factor, {"T_max": 40, "eta_min": 0.05}),
    "ExponentialLR": (exponential_factor, {"gamma": 0.97}),
}
"""The factor of MMEngine's schedulers at a step, 0-based, and their arguments."""

OURS = {"PolyLR": "PolynomialLR"}


@pytest.mark.parametrize("name", RULES)
def test_schedules_end_one_step_before_the_end_of_mmengine(name: str, tmp_path: Path) -> None:
    rows = [
        ours for theirs, ours in read_settings("MMEngine").items() if f"type='{name}'" in theirs
    ]
    factor, arguments = RULES[name]
    ends = {"end": "39 steps"}
    if name in ("LinearLR", "ConstantLR", "PolyLR"):
        assert name == "PolyLR" or "total_iters: 499, end: 500 steps" in rows[0]
        ends = {"total_iters": 39, "end": "40 steps"}

    scheduler = [{"type": OURS.get(name, name), **arguments, **ends}]
    for step, rate in enumerate(rates(scheduler, tmp_path)):
        assert rate == pytest.approx(factor(step, 40))


def test_schedule_after_the_cosine_of_the_page_keeps_its_rate(tmp_path: Path) -> None:
    """YOLOX's 285 epochs of cosine are 3 here. The last rate is that of the epoch before the
    end."""
    (text,) = re.findall(
        r"^`(\{type: CosineAnnealingLR.*\})`", section("MMEngine", "Settings"), re.MULTILINE
    )
    written = text.replace("0.0005", "0.05").replace("begin: 5", "begin: 1")
    scheduler = yaml.safe_load(written.replace("285", "3").replace("284", "2"))
    for step, rate in enumerate(rates([scheduler], tmp_path)):
        epoch = step // EPOCH
        expected = 0.05 + 0.95 * (1 + math.cos(math.pi * min(max(epoch - 1, 0), 1) / 3)) / 2
        assert rate == pytest.approx(expected)


def groups_in_mmengine(named: Iterable[str], norms: set[str]) -> dict[str, tuple[float, float]]:
    """Return the factors of the rate and of the weight decay by custom_keys and norm_decay_mult.

    The longest key in a parameter's name decides alone.
    """
    keys = {"backbone.layer4": (0.5, 1.0), "backbone": (0.1, 1.0)}
    factors = {}
    for name in named:
        key = next((key for key in keys if key in name), None)
        without_decay = name.endswith(".bias") or name in norms
        factors[name] = keys[key] if key else (1.0, 0.0 if without_decay else 1.0)
    return factors


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = {"conv": nn.Conv2d(3, 4, 1), "norm": nn.BatchNorm2d(4), "layer4": nn.Linear(4, 4)}
        self.backbone = nn.ModuleDict(layers)
        self.head = nn.ModuleDict({"linear": nn.Linear(4, 2), "norm": nn.LayerNorm(2)})
        self.gamma = nn.Parameter(torch.ones(2))


NORMS = {"backbone.norm.weight", "head.norm.weight"}


def test_parameter_groups_of_the_page_are_those_of_mmengine() -> None:
    (text,) = re.findall(
        r"^```yaml\n(optimizer:.*?)^```",
        section("MMEngine", "Settings"),
        re.DOTALL | re.MULTILINE,
    )
    arguments = yaml.safe_load(text)["optimizer"]
    named = dict(Detector().named_parameters())
    groups = make_parameter_groups(
        named,
        read_groups(arguments["groups"], "optimizer"),
        1e-4,
        "optimizer",
    )
    found = {
        id(parameter): (group.get("lr", 1e-4) / 1e-4, group.get("weight_decay", 0.05) / 0.05)
        for group in groups
        for parameter in group["params"]
    }
    for name, factors in groups_in_mmengine(named, NORMS).items():
        assert found[id(named[name])] == pytest.approx(factors), name


def test_schedule_of_the_imix_page_has_the_rates_of_imix(tmp_path: Path) -> None:
    """Its factor at a step: from warmup_factor to 1, then lr_ratio to the number of lr_steps so
    far."""
    (row,) = [
        ours for theirs, ours in read_settings("iMIX").items() if "`lr_config` with" in theirs
    ]
    text = (
        re.findall(r"`scheduler: (.*?)`", row)[0]
        .replace("1000", "20")
        .replace("14000", "40")
        .replace("19000", "60")
    )
    for step, rate in enumerate(rates(yaml.safe_load(text), tmp_path)):
        progress = step / 20
        factor = (
            0.2 * (1 - progress) + progress if step <= 20 else 0.1 ** bisect_right([40, 60], step)
        )
        assert rate == pytest.approx(factor)


WARMUP, LAST = 20, 4 * EPOCH
"""Steps of the warm-up and of the run below, for the 1000 and 8000 of the page."""


def after_warmup(step: int) -> float:
    """Return the completed fraction of the steps after the warm-up."""
    return (step - WARMUP) / (LAST - WARMUP)


IMIX_SCHEDULES: dict[str, Callable[[int], float]] = {
    "WarmupCosineSchedule": lambda step: (1 + math.cos(math.pi * after_warmup(step))) / 2,
    "WarmupConstantSchedule": lambda step: 1.0,
    "WarmupPolynomialSchedule": lambda step: (1 - after_warmup(step)) ** 2,
    "WarmupCosineWithHardRestartsSchedule": lambda step: (
        (1 + math.cos(math.pi * (2 * after_warmup(step) % 1))) / 2
    ),
}
"""The factor of iMIX's schedules, which are those of transformers, at a step after the warm-up."""


@pytest.mark.parametrize("name", IMIX_SCHEDULES)
def test_schedules_with_a_warm_up_have_the_rates_of_imix(name: str, tmp_path: Path) -> None:
    (row,) = [ours for theirs, ours in read_settings("iMIX").items() if f"`{name}`" in theirs]
    text = re.findall(r"`scheduler: (.*?)`", row)[0]
    short = {"1000": f"{WARMUP}", "3500": f"{(LAST - WARMUP) // 2}", "1e-8": "1.0e-8"}
    for written, value in short.items():
        text = text.replace(written, value)
    scheduler = yaml.safe_load(text)
    for step, rate in enumerate(rates(scheduler, tmp_path, param_scheduler={"every": "1 step"})):
        factor = step / WARMUP if step < WARMUP else IMIX_SCHEDULES[name](step)
        assert rate == pytest.approx(factor, abs=1e-6)


def rates(scheduler: Any, folder: Path, **hooks: Any) -> list[float]:
    """Return the rate of each step of a run in which the full rate is 1."""
    settings = described(
        epochs=4,
        batch_size=2,
        validate_every=0,
        optimizer={"type": "SGD", "lr": 1.0},
        scheduler=scheduler,
        hooks={"console": None, "checkpoint": None, **hooks},
    )
    rows = run(settings, folder, local=True).stats
    found = [float(rate) for rate in rows[rows["phase"] == "train"]["lr"]]
    assert len(found) == 4 * EPOCH
    return found


# Logs


EPOCHS, ITERATIONS = 3, 7
"""Length of the short runs below, in epochs and in iterations of an epoch."""


WINDOWS: dict[str, Callable[[Sequence[float]], float]] = {
    "MMEngine": lambda losses: fmean(losses[-10:]),
    "iMIX": lambda losses: median(losses[-20:]),
}
"""The loss in a line, from those of the iterations so far."""


@pytest.mark.parametrize("system", WINDOWS)
def test_lines_of_the_page_have_the_window_of_the_original(system: str, tmp_path: Path) -> None:
    written = yaml.safe_load(blocks(system)[1])["hooks"]["json_lines"]
    hooks = {"console": None, "json_lines": {**written, "every": "13 iterations"}}
    result = run(
        described(epochs=4, batch_size=2, validate_every=0, hooks=hooks), tmp_path, local=True
    )
    rows = result.stats
    losses = [float(loss) for loss in rows[rows["phase"] == "train"]["loss"]]

    (file,) = Path(str(result.path)).rglob("scalars.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = {line["iteration"]: line["loss"] for line in lines if "loss" in line}
    assert list(found) == [*range(13, 4 * EPOCH + 1, 13)]
    for iteration, loss in found.items():
        assert loss == pytest.approx(WINDOWS[system](losses[:iteration]), rel=1e-5)


def lines_in_mmengine(interval: int) -> list[tuple[int, int]]:
    """Return the epoch, from 1, and the iteration in it of each line of LoggerHook."""
    return [
        (epoch, position)
        for epoch in range(1, EPOCHS + 1)
        for position in range(1, ITERATIONS + 1)
        if position % interval == 0 or (position == ITERATIONS and interval >= ITERATIONS)
    ]


LINES = {
    3: [(1, 3), (1, 6), (1, 7), (2, 2), (2, 5), (2, 7), (3, 1), (3, 4), (3, 7)],
    7: [(1, 7), (2, 7), (3, 7)],
    10: [(2, 3), (3, 6)],
}
"""Lines of the console by the interval: over the run, and at the end of an epoch that is longer."""


@pytest.mark.parametrize("interval", LINES)
def test_lines_of_the_console_are_where_the_page_says(interval: int) -> None:
    text = " ".join(section("MMEngine", "Hooks").split())
    assert "At the end of a shorter epoch, MMEngine writes a line" in text
    console = Console(every=Interval(interval, "iterations"), min_seconds=0)
    lines = train_in_loop({"console": console}, Points(), batch_size=8, epochs=EPOCHS).lines
    places = [re.match(r"train  epoch (\d+)  (\d+)/", line) for line in lines]
    found = [(int(place[1]), int(place[2])) for place in places if place]
    assert found == LINES[interval]
    assert (found == lines_in_mmengine(interval)) == (interval == ITERATIONS)
    assert len([line for line in lines if line.startswith("train done")]) == EPOCHS


# Early stopping


def stops_in_mmengine(
    values: Sequence[float], threshold: float | None, min_delta: float, patience: int
) -> int | None:
    """Return the index of the value at which EarlyStoppingHook with rule='greater' ends
    training."""
    best, waited = -math.inf, 0
    for index, value in enumerate(values):
        if threshold is not None and value > threshold:
            return index
        if best + min_delta > value:
            waited += 1
            if waited >= patience:
                return index
        else:
            best, waited = value, 0
    return None


STOPS: list[tuple[list[float], float | None, float, int | None, int | None]] = [
    ([0.5, 0.75, 0.9, 0.95], 0.75, 0.0, 2, 1),
    ([0.5, 0.74, 0.76, 0.95], 0.75, 0.0, 2, 2),
    ([0.5, 0.625, 0.6, 0.5], None, 0.125, 3, 2),
    ([0.5, 0.7, 0.6, 0.6], None, 0.125, 3, 3),
    ([0.5, 0.5, 0.5, 0.5], None, 0.0, None, 2),
    ([0.5, 0.55, 0.6, 0.65], None, 0.125, 2, 2),
]
"""Values of a metric, stopping_threshold, min_delta, and the index of the stop there and here."""


@pytest.mark.parametrize(("values", "threshold", "min_delta", "theirs", "ours"), STOPS)
def test_early_stopping_differs_from_mmengine_as_the_page_says(
    values: list[float],
    threshold: float | None,
    min_delta: float,
    theirs: int | None,
    ours: int | None,
) -> None:
    """Where a value equals the threshold, or exceeds the best by exactly min_delta."""
    assert stops_in_mmengine(values, threshold, min_delta, 2) == theirs
    hook = EarlyStopping(
        "val/accuracy", patience=2, min_delta=min_delta, stopping_threshold=threshold
    )
    stops = []
    for value in values:
        state = State(phase="val", metrics={"val/accuracy": value})
        hook.on_phase_end(state)
        stops.append(bool(state.stop_reasons))
    assert (stops.index(True) if True in stops else None) == ours


# Checkpoints


def is_due_in_mmengine(completed: int, interval: int, begin: int) -> bool:
    return interval > 0 and completed - begin >= 0 and (completed - begin) % interval == 0


def test_begin_of_checkpoints_is_that_of_mmengine() -> None:
    for begin in range(6):
        for interval in range(5):
            for completed in range(1, 21):
                state = State(epoch=completed, epoch_completed=True)
                expected = is_due_in_mmengine(completed, interval, begin)
                assert Interval(interval).due(state, begin) == expected


STOP = 7
"""Epoch after which a hook stops a run of twelve."""


def checkpoints_in_mmengine(interval: int) -> list[int]:
    """Return the epochs of the checkpoints of a run that ends early: the last of `max_epochs`
    counts as the last, and is not reached."""
    return [epoch for epoch in range(1, STOP + 1) if epoch % interval == 0 or epoch == 12]


@pytest.mark.parametrize("interval", [1, 5, 7])
def test_stopped_run_ends_with_a_checkpoint_that_mmengine_does_not_make(
    interval: int, tmp_path: Path
) -> None:
    """No value improves on the first by so much, so the sixth after it ends the run."""
    assert "that a hook stops ends with a checkpoint" in " ".join(
        section("MMEngine", "Hooks").split()
    )
    hooks = {
        "checkpoint": {"every": f"{interval} epochs", "keep": None},
        "early_stopping": {"monitor": "val/loss", "patience": STOP - 1, "min_delta": 1e9},
        "console": None,
    }
    result = run(described(epochs=12, hooks=hooks), tmp_path, local=True)
    expected = sorted({*checkpoints_in_mmengine(interval), STOP})
    saved = Path(str(result.path), "checkpoints").glob("epoch-*")
    assert sorted(path.name for path in saved) == [f"epoch-{epoch:04d}" for epoch in expected]


def test_last_and_best_are_published_without_the_settings_that_mmengine_needs() -> None:
    """It publishes the last only with save_last, and the best only with save_best."""
    assert "whatever `save_last` and `best` are" in " ".join(section("MMEngine", "Hooks").split())
    hook = Checkpoint(every=Interval(2), keep=None, save_last=False, publish=["model"])
    simulated = simulate(hook, 0.5, 0.9, 0.5, 0.5, 0.5, max_epochs=5)
    hook.on_end(simulated.state)
    assert simulated.store.did("publish") == ["epoch-0004", "epoch-0002"]


def rule_of_mmengine(metric: str) -> str | None:
    """Return the mode that CheckpointHook infers: known words anywhere in the name, those of
    "greater" first."""
    name = metric.lower()
    greater = ["acc", "top", "ar@", "auc", "precision", "map", "mdice", "miou", "macc", "aacc"]
    if name != "loss" and any(word in name for word in greater):
        return "max"
    return "min" if "loss" in name else None


METRICS = """
    acc accuracy accuracy/top1 accuracy/top5 top-1 top1_acc loss loss_cls val_loss cls_loss adaptation_loss
    mAP bbox_mAP coco/bbox_mAP coco/bbox_mAP_50 pascal_voc/mAP multi-label/mAP AR@100 coco/AR@100 auc AUC roc_auc
    precision single-label/precision mIoU mAcc aAcc mDice
""".split()
"""Metrics for which both systems infer a rule."""

ONLY_HERE = "recall f1-score single-label/f1-score PSNR SSIM retrieval/Recall@1 error rmse".split()
NOWHERE = "mFscore PCK EPE NME MPJPE".split()
UNCLEAR = "accuracy_loss precision_loss top1_error map_loss".split()
"""Metrics with words of both kinds, which need `mode` here."""


def test_best_checkpoint_has_the_rule_of_mmengine() -> None:
    for metric in METRICS:
        mode = rule_of_mmengine(metric)
        assert mode is not None
        assert find_direction(f"val/{metric}") == mode, metric


def test_names_of_metrics_differ_from_mmengine_as_the_page_says() -> None:
    assert {rule_of_mmengine(metric) for metric in [*ONLY_HERE, *NOWHERE]} >= {None}
    assert None not in {find_direction(f"val/{metric}") for metric in ONLY_HERE}
    assert {find_direction(f"val/{metric}") for metric in [*NOWHERE, *UNCLEAR]} == {None}
    assert {rule_of_mmengine(metric) for metric in UNCLEAR} == {"max"}
    assert (rule_of_mmengine("stop_loss"), find_direction("val/stop_loss")) == ("max", "min")


# Conditions and requests of hooks


def conditions_in_mmengine(index: int) -> list[bool]:
    """Return the conditions of MMEngine's base class after an iteration, 0-based: every 3 from 5
    on, every 3 of an epoch, the end of the epoch and that of the run."""
    completed, position = index + 1, index % ITERATIONS + 1
    return [
        completed >= 5 and (completed - 5) % 3 == 0,
        position % 3 == 0,
        position == ITERATIONS,
        completed == EPOCHS * ITERATIONS,
    ]


class Conditions(Hook):
    """Keeps in each iteration which conditions of the page hold, and at each end of a training
    phase whether it is the last."""

    def __init__(self) -> None:
        self.every = Interval(3, "iterations")
        self.iterations: list[list[bool]] = []
        self.epochs: list[bool] = []

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        at_end = state.phase_iteration == state.phase_length
        is_last = state.finished
        if state.max_epochs is not None:
            is_last = at_end and state.epoch + 1 == state.max_epochs
        every, inner = self.every.due(state, 5), state.phase_iteration % 3 == 0
        self.iterations.append([every, inner, at_end, is_last])

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self.epochs.append(state.finished)


@pytest.mark.parametrize("length", [{"epochs": EPOCHS}, {"steps": EPOCHS * ITERATIONS}], ids=str)
def test_conditions_of_the_page_are_those_of_mmengine(length: dict[str, int]) -> None:
    text = section("MMEngine", "What a hook reads and changes")
    for condition in (
        "`self.every.due(state, start)` in `on_step`",
        "`state.phase_iteration % n == 0`",
        "`state.phase_iteration == state.phase_length`",
        "`state.epoch + 1 == state.max_epochs`",
    ):
        assert condition in text
    hook = Conditions()
    train_in_loop({"conditions": hook}, Points(), batch_size=8, **length)
    assert hook.iterations == [*map(conditions_in_mmengine, range(EPOCHS * ITERATIONS))]
    assert hook.epochs == [False, False, True]


def iterations_in_mmengine(stop: int) -> int:
    """Return the iterations of a run in which a hook sets `stop_training` in one of them: the epoch
    is completed."""
    return math.ceil(stop / ITERATIONS) * ITERATIONS


STOPPED = 10
"""Iteration in which a hook stops the run."""


class StopsTheRun(Hook):
    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.iteration == STOPPED:
            state.request_stop("enough")


def test_stop_does_not_wait_for_the_end_of_the_epoch_as_in_mmengine() -> None:
    text = " ".join(section("MMEngine", "What a hook reads and changes").split())
    assert "MMEngine first completes the epoch" in text
    trained = train_in_loop({"stops": StopsTheRun()}, Points(), batch_size=8, epochs=EPOCHS)
    assert trained.state.iteration == STOPPED < iterations_in_mmengine(STOPPED)
    assert "val/accuracy" in trained.reports[-1]


# Precision


@dataclass
class KeepsPrecision(Points):
    """Keeps the type of the outputs in each phase; `validates_in_fp32` as the page says."""

    validates_in_fp32: bool = False

    def __post_init__(self) -> None:
        self.types: dict[str, torch.dtype] = {}

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        enabled = model.training or not self.validates_in_fp32
        with nullcontext() if enabled else torch.autocast("cpu", enabled=False):
            output: Tensor = model(batch[0])
        self.types[self.progress.phase] = output.dtype
        return output


@pytest.mark.parametrize("validates_in_fp32", [False, True])
def test_validation_has_the_precision_of_training_unlike_mmengine(
    *, validates_in_fp32: bool
) -> None:
    text = " ".join(section("MMEngine", "Settings").split())
    assert "MMEngine validates in fp32" in text
    assert "`torch.autocast(device, enabled=False)` where `model.training` is false" in text
    task = KeepsPrecision(validates_in_fp32=validates_in_fp32)
    train_in_loop(task=task, precision="bf16")
    in_val = torch.float32 if validates_in_fp32 else torch.bfloat16
    assert task.types == {"train": torch.bfloat16, "val": in_val}


# The order of samples


def samples_in_mmengine(
    length: int, seed: int, epoch: int, rank: int, world_size: int, *, shuffle: bool
) -> list[int]:
    """Return the indices of DefaultSampler: the first ones again, until all ranks have as many."""
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(length, generator=generator).tolist() if shuffle else list(range(length))
    share = math.ceil(length / world_size)
    repeated = [order[position % length] for position in range(share * world_size)]
    return repeated[rank::world_size]


SHARES = [(length, world_size) for length in (1, 7, 12) for world_size in (1, 2, 3)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("length", "world_size"), SHARES)
def test_order_of_samples_is_that_of_mmengine(
    length: int, world_size: int, *, shuffle: bool
) -> None:
    order = default_order(length, 5, is_shuffled=shuffle)
    for rank in range(world_size):
        sampler = ShardedSampler(order, length, rank, world_size, even=True)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected = samples_in_mmengine(length, 5, epoch, rank, world_size, shuffle=shuffle)
            assert list(sampler) == expected


# The rules, against MMEngine itself


@pytest.mark.originals
def test_rule_of_the_loss_is_that_of_mmengine() -> None:
    from mmengine.model import BaseModel

    tensors = {name: torch.tensor(value) for name, value in LOSSES.items()}
    loss, logged = BaseModel.parse_losses(None, tensors)
    assert loss.item() == loss_in_mmengine(LOSSES)
    assert {*logged} == {"loss", *LOSSES}


@pytest.mark.originals
@pytest.mark.parametrize("interval", [1, 5, 7])
def test_rule_of_a_stopped_run_is_that_of_mmengine(interval: int) -> None:
    from mmengine.hooks import CheckpointHook

    hook, epochs = CheckpointHook(interval=interval), []
    hook._save_checkpoint = lambda runner: epochs.append(runner.epoch + 1)
    logger = SimpleNamespace(info=lambda text: None)
    for epoch in range(STOP):
        hook.after_train_epoch(SimpleNamespace(epoch=epoch, max_epochs=12, logger=logger))
    assert epochs == checkpoints_in_mmengine(interval)


@pytest.mark.originals
@pytest.mark.parametrize("begin", [{"begin_epoch": 2}, {"begin_iter": 7}, {}], ids=str)
def test_rule_of_the_average_is_that_of_mmengine(begin: dict[str, int]) -> None:
    from mmengine.hooks import EMAHook

    module = small_model()
    hook, first = EMAHook(momentum=0.0002, **begin), {"begin_epoch": 11, "begin_iter": 7}
    runner = SimpleNamespace(model=module, iter=0, epoch=0)
    hook.before_run(runner)
    rule = MicroBatchAverage(module, 1 - 0.0002, next((first[name] for name in begin), 1))

    for iteration in range(30):
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        runner.iter, runner.epoch = iteration, iteration // 10
        hook.after_train_iter(runner, iteration)
        rule.on_step(State(module=module, iteration=iteration + 1))
    assert_same(hook.ema_model.module.parameters(), rule.values)


@pytest.mark.originals
@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_schedules_are_those_of_mmengine(name: str) -> None:
    from mmengine.optim import scheduler as schedulers

    factor, arguments = RULES[name]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(schedulers, name)(optimizer, by_epoch=False, begin=0, end=40, **arguments)
    for step in range(60):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(factor(step, 40), abs=1e-12)
        scheduler.step()


@pytest.mark.originals
def test_rule_of_parameter_groups_is_that_of_mmengine() -> None:
    from mmengine.optim import build_optim_wrapper

    model = Detector()
    keys = {"backbone": {"lr_mult": 0.1}, "backbone.layer4": {"lr_mult": 0.5}}
    settings = {"norm_decay_mult": 0.0, "bias_decay_mult": 0.0, "custom_keys": keys}
    optimizer = {"type": "AdamW", "lr": 1.0, "weight_decay": 1.0}
    wrapper = build_optim_wrapper(
        model, {"type": "OptimWrapper", "optimizer": optimizer, "paramwise_cfg": settings}
    )
    found = {
        id(group["params"][0]): (group["lr"], group["weight_decay"])
        for group in wrapper.param_groups
    }
    named = dict(model.named_parameters())
    for name, factors in groups_in_mmengine(named, NORMS).items():
        assert found[id(named[name])] == factors


@pytest.mark.originals
def test_rule_of_the_window_is_that_of_mmengine() -> None:
    from mmengine.logging import HistoryBuffer
    from mmengine.runner import LogProcessor

    buffer, values = HistoryBuffer(), [math.sin(index) for index in range(25)]
    for value in values:
        buffer.update(value)
    assert LogProcessor().window_size == 10
    assert buffer.mean(10) == pytest.approx(fmean(values[-10:]))


@pytest.mark.originals
@pytest.mark.parametrize("interval", LINES)
def test_rule_of_the_lines_is_that_of_mmengine(interval: int) -> None:
    from mmengine.hooks import LoggerHook

    hook, found = LoggerHook(interval=interval), []
    runner = SimpleNamespace(
        train_dataloader=range(ITERATIONS),
        experiment_name="lines",
        logger=SimpleNamespace(info=lambda text: None),
        log_processor=SimpleNamespace(get_log_after_iter=lambda *arguments: ({}, "")),
        visualizer=SimpleNamespace(
            add_scalars=lambda tag, step, file_path: found.append(divmod(step - 1, ITERATIONS))
        ),
    )
    for runner.iter in range(EPOCHS * ITERATIONS):
        hook.after_train_iter(runner, runner.iter % ITERATIONS)
    assert [(epoch + 1, position + 1) for epoch, position in found] == lines_in_mmengine(interval)


@pytest.mark.originals
@pytest.mark.parametrize(("values", "threshold", "min_delta", "theirs", "ours"), STOPS)
def test_rule_of_early_stopping_is_that_of_mmengine(
    values: list[float],
    threshold: float | None,
    min_delta: float,
    theirs: int | None,
    ours: int | None,
) -> None:
    from mmengine.hooks import EarlyStoppingHook

    hook = EarlyStoppingHook(
        "accuracy", rule="greater", min_delta=min_delta, patience=2, stopping_threshold=threshold
    )
    stops = [hook._check_stop_condition(value)[0] for value in values]
    assert next((index for index, stop in enumerate(stops) if stop), None) == theirs


@pytest.mark.originals
def test_rule_of_checkpoints_is_that_of_mmengine() -> None:
    from mmengine.hooks import Hook as TheirHook

    for begin in range(6):
        for interval in range(5):
            for completed in range(1, 21):
                runner = SimpleNamespace(epoch=completed - 1)
                found = TheirHook().every_n_epochs(runner, interval, begin)
                expected = is_due_in_mmengine(completed, interval, begin)
                assert found == expected, (begin, interval, completed)


@pytest.mark.originals
def test_rule_of_the_best_is_that_of_mmengine() -> None:
    from mmengine.hooks import CheckpointHook

    modes = {"greater": "max", "less": "min"}
    for metric in [*METRICS, *UNCLEAR, "stop_loss"]:
        (rule,) = CheckpointHook(save_best=metric).rules
        assert modes[rule] == rule_of_mmengine(metric)
    for metric in NOWHERE:
        with pytest.raises(ValueError, match="Cannot infer the rule"):
            CheckpointHook(save_best=metric)


@pytest.mark.originals
def test_rules_of_the_conditions_are_those_of_mmengine() -> None:
    from mmengine.hooks import Hook as TheirHook

    theirs = TheirHook()
    for index in range(EPOCHS * ITERATIONS):
        runner = SimpleNamespace(iter=index, max_iters=EPOCHS * ITERATIONS)
        batch = index % ITERATIONS
        assert conditions_in_mmengine(index) == [
            theirs.every_n_train_iters(runner, 3, 5),
            theirs.every_n_inner_iters(batch, 3),
            theirs.end_of_epoch(range(ITERATIONS), batch),
            theirs.is_last_train_iter(runner),
        ]


class Batches(list[int]):
    """A loader, as far as MMEngine's loops read it."""

    dataset = SimpleNamespace(metainfo=None)


@pytest.mark.originals
def test_rule_of_a_stop_is_that_of_mmengine() -> None:
    from mmengine.runner import EpochBasedTrainLoop

    def call_hook(name: str, **arguments: Any) -> None:
        if name == "after_train_iter" and loop.iter + 1 == STOPPED:
            loop.stop_training = True

    model = SimpleNamespace(train=lambda: None, train_step=lambda batch, optim_wrapper: {})
    runner = SimpleNamespace(
        call_hook=call_hook,
        model=model,
        optim_wrapper=None,
        val_loop=None,
        visualizer=SimpleNamespace(),
    )
    loop = EpochBasedTrainLoop(runner, Batches(range(ITERATIONS)), max_epochs=EPOCHS)
    loop.run()
    assert loop.iter == iterations_in_mmengine(STOPPED)


@pytest.mark.originals
@pytest.mark.parametrize("fp16", [False, True])
def test_rule_of_the_precision_of_validation_is_that_of_mmengine(*, fp16: bool) -> None:
    from mmengine.evaluator import Evaluator
    from mmengine.runner import ValLoop

    found = []

    def val_step(batch: int) -> list[int]:
        found.append(torch.is_autocast_enabled("cpu"))
        return [batch]

    runner = SimpleNamespace(
        call_hook=lambda name, **arguments: None,
        model=SimpleNamespace(val_step=val_step),
        visualizer=SimpleNamespace(),
    )
    loop = ValLoop(runner, Batches(range(1)), Evaluator([]), **({"fp16": True} if fp16 else {}))
    loop.run_iter(0, 0)
    assert found == [fp16]


@pytest.mark.originals
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("length", "world_size"), SHARES)
def test_rule_of_the_order_is_that_of_mmengine(
    length: int, world_size: int, monkeypatch: pytest.MonkeyPatch, *, shuffle: bool
) -> None:
    from mmengine.dataset import DefaultSampler, sampler

    for rank in range(world_size):
        monkeypatch.setattr(sampler, "get_dist_info", lambda: (rank, world_size))  # noqa: B023  # called in this pass
        theirs = DefaultSampler(range(length), shuffle=shuffle, seed=5)
        for epoch in range(3):
            theirs.set_epoch(epoch)
            expected = samples_in_mmengine(length, 5, epoch, rank, world_size, shuffle=shuffle)
            assert list(theirs) == expected
