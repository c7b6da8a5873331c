"""Random cases: an experiment, and the accidents that it meets."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accidents.accident import Accident, RoundAccident
from benchmarks.accidents.damage import FILES, FLIPPED
from benchmarks.accidents.programs import MODELS, Adversarial, CustomLoop, Program
from orchestrator import Experiment

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adafactor": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.05, "t0": 3},
    "LBFGS": {"lr": 0.5, "max_iter": 3, "history_size": 4},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.005, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "": {},
    "ConstantLR": {"total_iters": 3},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.001},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.001, "max_lr": 0.01, "step_size_up": 3, "cycle_momentum": False},
    "ExponentialLR": {"gamma": 0.9},
    "LinearLR": {"total_iters": 4},
    "MultiStepLR": {"milestones": [1, 3, 3], "gamma": 0.7},
    "OneCycleLR": {"max_lr": 0.05, "cycle_momentum": False},
    "PolynomialLR": {"total_iters": 5, "power": 2.0},
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "warm-up": {},
    "list": {},
}
RATES = ("CyclicLR", "OneCycleLR")
"""Schedulers that set the rate."""
TURNS = ("discriminator", "generator")
ACCIDENTS = (
    "kill",
    "kill",
    "kill",
    "interrupt",
    "terminate",
    "fill",
    "hide",
    "blink",
    "clock",
    "memory",
)
EVENTS = ("on_phase_start", "on_batch", "on_loss", "on_step", "on_phase_end")


@dataclass
class Case:
    """A random experiment with its accidents."""

    seed: int
    program: str
    train: int
    val: int
    epochs: int
    batch_size: int
    val_batch_size: int
    accumulate: int
    optimizer: str
    scheduler: str
    unit: str
    """What the scheduler steps by: `epoch` or `step`."""
    max_norm: float | None
    drop_last: bool
    stream: str
    epoch_steps: int
    """Steps in an epoch of an endless stream."""
    is_bf16: bool
    decay: float | None
    """Decay of `ema`, with whose averages validation runs."""
    validate_every: str
    save_every: str
    is_background: bool
    places: list[str]
    damages: list[str]
    """Damage after each accident: to the newest file of a name (`cut model.pt 17`), to the disk
    (`read-only`)."""

    @property
    def iterations(self) -> int:
        """Iterations in an epoch."""
        if self.stream == "endless":
            return self.epoch_steps * self.accumulate
        return (
            self.train // self.batch_size if self.drop_last else -(-self.train // self.batch_size)
        )

    def experiment(self, marks: Path, disk: Path) -> Experiment:
        checkpoint = {
            "every": self.save_every,
            "background": self.is_background,
            "keep": 3,
            "best": "val/loss",
        }
        accident = (RoundAccident if self.program == "custom" else Accident)(
            self.places, str(marks), str(disk)
        )
        hooks: dict[str, Any] = {"checkpoint": checkpoint, "console": None, "accident": accident}
        task_args: dict[str, Any] = {"train_samples": self.train, "val_samples": self.val}
        common = {
            "name": "case",
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        if self.program == "custom":
            return Experiment(task=CustomLoop, task_args=task_args, hooks=hooks, **common)
        settings: dict[str, Any] = {
            "accumulate": self.accumulate,
            "validate_every": self.validate_every,
            "loader": {"drop_last": self.drop_last, "eval_batch_size": self.val_batch_size},
        }
        if self.stream == "endless":
            settings["epoch_steps"] = self.epoch_steps
        if self.decay:
            hooks["ema"] = {"decay": self.decay}
        if self.program == "adversarial":
            optimizers = {
                name: {"type": "Adam", "lr": 0.01, "params": f"{name}.*"} for name in TURNS
            }
            task_args["stream"] = self.stream
            return Experiment(
                task=Adversarial,
                task_args=task_args,
                hooks=hooks,
                optimizers=optimizers,
                **settings,
                **common,
            )
        if self.max_norm:
            hooks["gradient_clip"] = {"max_norm": self.max_norm}
        optimizer = {"type": self.optimizer, **OPTIMIZERS[self.optimizer]}
        if self.scheduler:
            hooks["param_scheduler"] = {"every": f"1 {self.unit}"}
            settings["scheduler"] = self._schedule()
        if self.scheduler in RATES:
            del optimizer["lr"]
        return Experiment(
            task=Program,
            task_args={**task_args, "program": self.program, "stream": self.stream},
            optimizer=optimizer,
            precision="bf16" if self.is_bf16 else "fp32",
            hooks=hooks,
            **settings,
            **common,
        )

    def draw_moment(self, chance: random.Random) -> str:
        """Draw an event, with its phase, epoch and iteration."""
        phase, event = chance.choice(["train", "train", "val"]), chance.choice(EVENTS)
        if phase == "val" and event == "on_step":
            event = "on_batch"
        length = self.iterations if phase == "train" else -(-self.val // self.val_batch_size)
        moments = {"on_phase_start": [0], "on_phase_end": [length], "on_step": range(1, length + 1)}
        iteration = chance.choice(moments.get(event, range(length)))
        return f"{event} {phase} {chance.randrange(self.epochs)} {iteration}"

    def _schedule(self) -> Any:
        if self.scheduler == "warm-up":
            return {"type": "CosineAnnealingLR", "warmup": 1, "warmup_factor": 0.1}
        if self.scheduler == "list":
            pace = f"1 {self.unit}"
            rise = {"type": "LinearLR", "start_factor": 0.1, "end": pace, "every": pace}
            return [rise, {"type": "ExponentialLR", "gamma": 0.8, "every": pace}]
        return {"type": self.scheduler, **SCHEDULERS[self.scheduler]}


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    chance = random.Random(seed)
    case = Case(
        seed=chance.randrange(5),
        program=chance.choice([*MODELS, *MODELS, "adversarial", "custom"]),
        train=chance.randrange(9, 30),
        val=chance.randrange(1, 12),
        epochs=chance.randrange(2, 5),
        batch_size=chance.randrange(2, 9),
        val_batch_size=chance.randrange(1, 9),
        accumulate=chance.choice([1, 1, 2, 3]),
        optimizer=chance.choice(list(OPTIMIZERS)),
        scheduler=chance.choice(list(SCHEDULERS)),
        unit=chance.choice(["epoch", "step"]),
        max_norm=chance.choice([None, 0.5]),
        drop_last=chance.random() < 0.3,
        stream=chance.choice(["", "", "sized", "endless"]),
        epoch_steps=chance.randrange(1, 5),
        is_bf16=chance.random() < 0.25,
        decay=chance.choice([None, 0.5, 0.9]),
        validate_every=chance.choice(["1 epoch", "1 epoch", "2 epochs", "2 steps", "3 steps"]),
        save_every=chance.choice(["1 step", "2 steps", "3 steps", "1 epoch", "2 epochs"]),
        is_background=chance.random() < 0.5,
        places=[],
        damages=[],
    )
    if case.train % case.batch_size == 1:
        case.drop_last = True  # BatchNorm takes no batch of a single sample
    if case.stream and case.program == "augmented":
        case.program = (
            "denoiser"  # the draws of a stream's samples are the loader's, and not the loop's
        )
    if case.program == "custom":
        case.save_every = "1 epoch"  # it saves in its epochs by itself
    if case.optimizer == "LBFGS":
        case.accumulate, case.max_norm, case.scheduler = 1, None, ""
    for _ in range(chance.randrange(1, 4)):
        case.places.append(f"{chance.choice(ACCIDENTS)} {case.draw_moment(chance)}")
        case.damages.append(_draw_damage(chance))
    return case


def _draw_damage(chance: random.Random) -> str:
    kind = chance.choice(["keep", "keep", "cut", "flip", "read-only"])
    if kind in ("keep", "read-only"):
        return kind
    file = chance.choice(FILES)
    if file not in FLIPPED:
        kind = "cut"  # a flipped bit would not be found
    return f"{kind} {file} {chance.randrange(1000)}"
