"""Sweeps written by hand against Ray, on the digits by default, which train the same as Hookyard's
trials: the peers of its sweeps.

A trial: some epochs with averaged weights, validated, reported and checkpointed after each. Each
trial adds the seconds of its own training, validation included and checkpoints not, and the time of
day to its reports.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from statistics import mean, median
from typing import Any

# The same settings for everybody, so that they are no difference.
os.environ.update(
    {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
)

import ray
import torch
from ray import tune
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.timing import print_table, ratio
from orchestrator import load_experiment, sweep


@dataclass(frozen=True)
class Took:
    """Cost of a sweep."""

    seconds: float
    own_s: list[float]
    """Each trial's own training, validation included and checkpoints not, in the order in which
    trials ended."""
    ends: list[float]
    """When each trial ended, in seconds since 1970."""

    @classmethod
    def from_trials(cls, seconds: float, trials: Iterable[tuple[float, float]]) -> "Took":
        """From when each trial ended and its own training, in any order."""
        ends, own_s = zip(*sorted(trials), strict=True)
        return cls(seconds, list(own_s), list(ends))


Contestant = Callable[[str, int], Took]
"""Runs a sweep of a number of trials in a folder."""

DIGITS = {"task": "experiments.digits:Digits", "batch_size": 64}
SPACE = {**DIGITS, "lr": tune.loguniform(0.01, 0.5), "decay": tune.choice([0, 0.5, 0.9, 0.99])}


def hookyard(*overrides: str) -> Contestant:
    """The sweep that ships with Hookyard, of which each trial trains."""

    def run(folder: str, trials: int) -> Took:
        alone = [
            "sweep.space.hooks.ema.decay={choice: [0, 0.5, 0.9, 0.99]}",
            f"sweep.trials={trials}",
        ]
        experiment = load_experiment("experiments/digits_ema_sweep.yaml", [*alone, *overrides])
        started = time.perf_counter()
        outcome = sweep(experiment, folder)
        seconds = time.perf_counter() - started
        assert outcome.trials["status"].tolist() == ["finished"] * trials
        rows = outcome.load_stats(columns=["step_s", "checkpoint_s"], where="rank == 0")
        own_s = (
            (rows["step_s"] - rows["checkpoint_s"].fillna(0))
            .groupby(rows["trial"], observed=True)
            .sum()
        )
        return Took.from_trials(
            seconds,
            (
                (Path(cost.path, "run.json").stat().st_mtime, float(own_s[cost.name]))
                for cost in outcome.runs
            ),
        )

    return run


def tuned(
    trainable: Any,
    *,
    space: Mapping[str, Any] = SPACE,
    at_once: int | None = None,
    reuse: bool = True,
) -> Contestant:
    """Ray Tune over a trainable written by hand; `at_once` trials at a time, or as many as fit. A
    grid in `space` is gone through by each trial."""

    def run(folder: str, trials: int) -> Took:
        tuner = tune.Tuner(
            trainable,
            param_space={**space, "folder": folder},
            tune_config=tune.TuneConfig(
                num_samples=trials, max_concurrent_trials=at_once, reuse_actors=reuse
            ),
            run_config=tune.RunConfig(
                name="by-hand",
                storage_path=folder,
                checkpoint_config=tune.CheckpointConfig(
                    num_to_keep=3, checkpoint_frequency=1 if isinstance(trainable, type) else 0
                ),
                verbose=0,
            ),
        )
        started = time.perf_counter()
        results = tuner.fit()
        seconds = time.perf_counter() - started
        assert not results.errors, results.errors
        return Took.from_trials(
            seconds, ((result.metrics["ended"], result.metrics["seconds"]) for result in results)
        )

    return run


def take_turns(
    contestants: Mapping[str, Contestant], trials: int, rounds: int, **options: Any
) -> dict[str, list[Took]]:
    """Every contestant's sweeps, one in each round, in a Ray that is started once with
    `options`."""
    took: dict[str, list[Took]] = {name: [] for name in contestants}
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        **options,
    )
    for _ in range(rounds):
        for name, run in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                took[name].append(run(folder, trials))
    ray.shutdown()
    return took


def print_walls(title: str, took: Mapping[str, list[Took]]) -> None:
    """Prints what whole sweeps took; the first contestant is what the others are compared with."""
    base = [cost.seconds for cost in next(iter(took.values()))]
    rows = []
    for name, rounds in took.items():
        wall, own = [cost.seconds for cost in rounds], median(mean(cost.own_s) for cost in rounds)
        rows.append(
            (
                name,
                f"{median(wall):.1f}",
                f"{min(wall):.1f}",
                f"{max(wall):.1f}",
                f"{own:.2f}",
                f"{ratio(wall, base):.2f}",
            )
        )
    print_table(
        title,
        ["sweep", "s, median", "min", "max", "s of own training, each trial", "to the first"],
        rows,
    )


# A trial


class Training:
    """Model, data and optimizer of a trial, trained epoch by epoch, on each rank of a job with
    several ranks."""

    def __init__(
        self,
        config: dict[str, Any],
        epochs: int,
        prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
        ranks: int = 1,
    ) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        task = resolve_name(config["task"])()
        self.data, self.module = task.data(), task.model()
        self.model = prepare(self.module)
        self.sampler: Any = DistributedSampler(self.data["train"]) if ranks > 1 else None
        self.train_loader = DataLoader(
            self.data["train"],
            batch_size=config["batch_size"],
            sampler=self.sampler,
            shuffle=ranks == 1,
        )
        self.val_loader = DataLoader(self.data["val"], batch_size=config["batch_size"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs)
        self.averages = [parameter.detach().clone() for parameter in self.module.parameters()]
        self.decay, self.epochs, self.epoch, self.seconds = config["decay"], epochs, 0, 0.0

    def next_epoch(self) -> dict[str, Any]:
        """Train and validate; return the report."""
        started = time.perf_counter()
        if self.sampler is not None:
            self.sampler.set_epoch(self.epoch)
        self.model.train()
        for images, labels in self.train_loader:
            functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(self.averages, list(self.module.parameters()), 1 - self.decay)
            self.optimizer.zero_grad()
        self.scheduler.step()
        self.module.eval()
        with torch.no_grad():
            right = sum(
                int((self.module(images).argmax(dim=1) == labels).sum())
                for images, labels in self.val_loader
            )
        self.epoch += 1
        self.seconds += time.perf_counter() - started
        return {
            "epoch": self.epoch,
            "accuracy": right / len(self.data["val"]),
            "seconds": self.seconds,
            "ended": time.time(),
        }

    def save(self, folder: str) -> None:
        """Writes a checkpoint."""
        state = {
            "model": self.module.state_dict(),
            "averages": self.averages,
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(
            {**state, "scheduler": self.scheduler.state_dict(), "epoch": self.epoch},
            Path(folder) / "state.pt",
        )


def class_trainable(epochs: int) -> type[tune.Trainable]:
    """A class Trainable whose process takes one trial after the other."""

    class Trial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.training = Training(config, epochs)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def step(self) -> dict[str, Any]:
            return {**self.training.next_epoch(), "done": self.training.epoch == epochs}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            self.training.save(checkpoint_dir)

    return Trial


def function_trainable(epochs: int) -> Callable[[dict[str, Any]], None]:
    """A function that reports."""

    def trial(config: dict[str, Any]) -> None:
        training = Training(config, epochs)
        for folder, metrics in _epochs(training):
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    return trial


def train_job_trainable(epochs: int, ranks: int, poll_s: float) -> Callable[[dict[str, Any]], None]:
    """A function that starts a Ray Train job for each trial, as Ray's guide on tuning distributed
    training has it.

    Ray Train looks for reports every `poll_s`, which is 2 s where nothing is said.
    """

    def trial(config: dict[str, Any]) -> None:
        os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = str(poll_s)
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
        from ray.tune.integration.ray_train import TuneReportCallback

        def train_worker(config: dict[str, Any]) -> None:
            from ray.train import Checkpoint, report
            from ray.train.torch import prepare_model

            for folder, metrics in _epochs(Training(config, epochs, prepare_model, ranks)):
                report(metrics, checkpoint=Checkpoint.from_directory(folder))

        run_config = RunConfig(
            name=f"train-{uuid.uuid4().hex[:8]}",
            storage_path=config["folder"],
            callbacks=[TuneReportCallback()],
        )
        scaling = ScalingConfig(num_workers=ranks)
        TorchTrainer(
            train_worker, train_loop_config=config, scaling_config=scaling, run_config=run_config
        ).fit()

    return trial


def _epochs(training: Training) -> Iterator[tuple[str, dict[str, Any]]]:
    while training.epoch < training.epochs:
        metrics = training.next_epoch()
        with tempfile.TemporaryDirectory() as folder:
            training.save(folder)
            yield folder, metrics
