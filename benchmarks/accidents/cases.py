"""Random cases: an experiment, and the accidents that it meets."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.accidents.programs import MODELS, Program
from hooks import Hook, State
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
    "PolynomialLR": {"total_iters": 5, "power": 2.0},
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "warm-up": {},
    "list": {},
}
EVENTS = ("on_phase_start", "on_batch", "on_loss", "on_step", "on_phase_end")
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}
FILLER = "filler"
"""File that fills the disk."""


@dataclass
class Accident(Hook):
    """Causes an accident once at each place.

    In `kill on_loss train 1 2` these are the accident, the event, the phase, its epoch and iteration. The name of a
    trial, or a rank such as `rank1`, may follow. `kill-driver` and `interrupt-driver` send the signal to the driver.
    """

    places: list[str] = field(default_factory=list)
    marks: str = ""
    """Folder that remembers which accidents have happened."""
    disk: str = ""
    """Mount point of the disk that holds the run."""

    observes: ClassVar[bool] = True

    def meet(self, event: str, state: State) -> None:
        moment = f"{event} {state.phase} {state.epoch} {state.phase_iteration}"
        for place in self.places:
            kind, _, planned = place.partition(" ")
            mark = Path(self.marks, place)
            if planned in (moment, f"{moment} {state.name}", f"{moment} rank{state.rank}") and not mark.exists():
                mark.touch()
                self.cause(kind, state)

    def cause(self, kind: str, state: State) -> None:
        if kind == "fill":
            fill(Path(self.disk))
        elif kind.endswith("-driver"):
            driver = json.loads((state.artifacts / "run.json").read_text())["pid"]
            os.kill(driver, SIGNALS[kind.removesuffix("-driver")])
        else:
            os.kill(os.getpid(), SIGNALS[kind])

    def on_phase_start(self, state: State) -> None:
        self.meet("on_phase_start", state)

    def on_batch(self, state: State) -> None:
        self.meet("on_batch", state)

    def on_loss(self, state: State) -> None:
        self.meet("on_loss", state)

    def on_step(self, state: State) -> None:
        self.meet("on_step", state)

    def on_phase_end(self, state: State) -> None:
        self.meet("on_phase_end", state)


def fill(disk: Path) -> None:
    """Write a file until the disk is full."""
    with open(disk / FILLER, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


@dataclass
class Case:
    """One random experiment with its accidents."""

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
    """Damage after each accident: to a file of the newest checkpoint (`cut`, `flip`), to the disk (`read-only`)."""

    @property
    def iterations(self) -> int:
        """Iterations in an epoch."""
        if self.stream == "endless":
            return self.epoch_steps * self.accumulate
        return self.train // self.batch_size if self.drop_last else -(-self.train // self.batch_size)

    def experiment(self, marks: Path, disk: Path) -> Experiment:
        hooks: dict[str, Any] = {
            "checkpoint": {"every": self.save_every, "background": self.is_background, "keep": 3},
            "console": None,
            "accident": Accident(self.places, str(marks), str(disk)),
        }
        if self.max_norm:
            hooks["gradient_clip"] = {"max_norm": self.max_norm}
        if self.decay:
            hooks["ema"] = {"decay": self.decay}
        settings: dict[str, Any] = {}
        optimizer = {"type": self.optimizer, **OPTIMIZERS[self.optimizer]}
        if self.scheduler:
            hooks["param_scheduler"] = {"every": f"1 {self.unit}"}
            settings["scheduler"] = self._schedule()
        if self.scheduler == "CyclicLR":
            del optimizer["lr"]
        if self.stream == "endless":
            settings["epoch_steps"] = self.epoch_steps
        return Experiment(
            name="case",
            task=Program,
            task_args={
                "program": self.program,
                "train_samples": self.train,
                "val_samples": self.val,
                "stream": self.stream,
            },
            epochs=self.epochs,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            seed=self.seed,
            optimizer=optimizer,
            precision="bf16" if self.is_bf16 else "fp32",
            validate_every=self.validate_every,
            loader={"drop_last": self.drop_last, "eval_batch_size": self.val_batch_size},
            hooks=hooks,
            **settings,
        )

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
        program=chance.choice(list(MODELS)),
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
        case.program = "denoiser"  # the draws of a stream's samples are the loader's, and not the loop's
    if case.optimizer == "LBFGS":
        case.accumulate, case.max_norm, case.scheduler = 1, None, ""
    for _ in range(chance.randrange(1, 4)):
        kind, event = chance.choice(["kill", "kill", "interrupt", "fill"]), chance.choice(EVENTS)
        phase, epoch = chance.choice(["train", "train", "val"]), chance.randrange(case.epochs)
        case.places.append(f"{kind} {event} {phase} {epoch} {chance.randrange(case.iterations + 1)}")
        case.damages.append(chance.choice(["keep", "keep", "keep", "cut", "flip", "read-only"]))
    return case
