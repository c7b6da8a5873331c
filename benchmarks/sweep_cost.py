"""What a trial of a sweep costs beyond its own training: eight one-rank trials on the digits, one at a time.

Beside it, written by hand against Ray Tune and training the same: a function per trial, with and without actor reuse, and
a Ray Train job per trial. Ray is started once, before the clock runs; contestants take turns. A trial's own training is
the time of its iterations, validation included; everything else of the sweep's wall time is shared out over the trials.

    python -m benchmarks.sweep_cost [rounds]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

# The same settings for everybody, so that they are no difference.
os.environ.update({"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1", "RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"})

import ray
import torch
from ray import tune
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.timing import print_table
from orchestrator import load_experiment, sweep

TRIALS = 8
EPOCHS = 5
Wall = tuple[float, float]
"""Seconds of a whole sweep, and of its trials' own training, summed."""


def hookyard(folder: str) -> Wall:
    overrides = ["workers.count=1", "sweep.max_concurrent=1", "sweep.scheduler=fifo", f"sweep.trials={TRIALS}"]
    experiment = load_experiment("experiments/digits_ema_sweep.yaml", overrides)
    started = time.perf_counter()
    outcome = sweep(experiment, folder)
    wall = time.perf_counter() - started
    stats = outcome.stats
    assert stats["trial"].nunique() == TRIALS
    return wall, float(stats["step_s"].sum())


def train(config: dict[str, Any], report: Callable[[dict[str, Any], str], None]) -> None:
    """The trial by hand: five epochs with averaged weights, validated, reported and checkpointed after each."""
    from experiments.digits import Digits

    torch.manual_seed(0)
    task = Digits(width=32)
    data = task.data()
    model = task.model()
    train_loader = DataLoader(data["train"], batch_size=64, shuffle=True)
    val_loader = DataLoader(data["val"], batch_size=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    seconds = 0.0
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        model.train()
        for images, labels in train_loader:
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(averages, list(model.parameters()), 1 - config["decay"])
            optimizer.zero_grad()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in val_loader)
        seconds += time.perf_counter() - started
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder) / "state.pt")
            report({"epoch": epoch, "accuracy": right / len(data["val"]), "seconds": seconds}, folder)  # type: ignore[arg-type]


def tune_function(config: dict[str, Any]) -> None:
    train(config, lambda metrics, folder: tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder)))


def train_job(config: dict[str, Any]) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    # Reported once, when it is over: TuneReportCallback, which would hand on each report, can lock up where reports are fast.
    run_config = RunConfig(name=f"trial-{time.time_ns()}", storage_path=config["folder"])
    trainer = TorchTrainer(in_train_job, train_loop_config=config, scaling_config=ScalingConfig(num_workers=1), run_config=run_config)
    tune.report(trainer.fit().metrics)


def in_train_job(config: dict[str, Any]) -> None:
    from ray.train import Checkpoint, report

    train(config, lambda metrics, folder: report(metrics, checkpoint=Checkpoint.from_directory(folder)))


def by_hand(function: Callable[[dict[str, Any]], None], reuse: bool = False) -> Callable[[str], Wall]:
    def run(folder: str) -> Wall:
        space = {"lr": tune.loguniform(0.01, 0.5), "decay": tune.choice([0, 0.5, 0.9, 0.99]), "folder": folder}
        tuner = tune.Tuner(
            function,
            param_space=space,
            tune_config=tune.TuneConfig(num_samples=TRIALS, max_concurrent_trials=1, reuse_actors=reuse),
            run_config=tune.RunConfig(name="by-hand", storage_path=folder, verbose=0),
        )
        started = time.perf_counter()
        results = tuner.fit()
        wall = time.perf_counter() - started
        assert not results.errors, results.errors
        return wall, sum(result.metrics["seconds"] for result in results)

    return run


def main(rounds: int = 1) -> None:
    contestants = {
        "hookyard sweep": hookyard,
        "Ray Tune function by hand": by_hand(tune_function),
        "Ray Tune function by hand, actors reused": by_hand(tune_function, reuse=True),
        "Ray Train job per trial by hand": by_hand(train_job),
    }
    walls: dict[str, list[Wall]] = {name: [] for name in contestants}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for _ in range(rounds):
        for name, run in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                walls[name].append(run(folder))
    ray.shutdown()
    rows = []
    for name, times in walls.items():
        beyond = [(wall - training) / TRIALS for wall, training in times]
        wall, training = median(wall for wall, _ in times), median(training for _, training in times)
        rows.append((name, f"{wall:.1f}", f"{training / TRIALS:.2f}", f"{median(beyond):.2f}", f"{max(beyond):.2f}"))
    columns = ["sweep", "s, all trials", "s of own training, each", "s beyond it, each", "slowest round"]
    print_table(f"A sweep of {TRIALS} one-rank trials, one at a time ({rounds} rounds, in turns)", columns, rows)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
