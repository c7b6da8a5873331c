"""Eight decays of averaged weights that share one training, compared with one trial and with eight
separate trainings.

The claim: eight decays cost at most 2 times one trial where training is 10 times its validation.
They share it in this process and on Ray; beside them the same sweep with `share_training: false`,
on Ray its trials one after the other on warm processes, and Ray Tune over Ray Train as Ray's guide
has it. An epoch of the network is seconds, so that its training is most of a trial; of the digits',
which are as `make demo` sweeps them but on one rank, it is hundredths of one, and each trial's
checkpoints and folder cost as much.

The measure is processor time: that of this process and of all processes that Ray has started here
(its daemons, workers and Train's controllers), including those that have ended, minus the processor
time that they use in the same time while idle. Starting a sweep's workers counts, but starting Ray
does not. All processes have one thread. Trials have one rank and run one at a time, and the
contestants take turns.

    python -m benchmarks.shared_training [rounds in this process] [rounds on Ray, or 0]
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, suppress
from functools import partial
from io import StringIO
from statistics import median
from threading import Lock, Thread
from time import perf_counter, process_time, sleep, thread_time
from typing import Any, NamedTuple

import psutil
import ray
import torch
from ray import tune

from benchmarks.handwritten_sweep import DIGITS, train_job_trainable, tuned
from benchmarks.timing import print_table, ratio
from orchestrator import Sweep, sweep
from orchestrator.experiment.load import load_experiment, make_experiment

DECAYS = [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999]
SWEEP = {"metric": "val/loss", "mode": "min", "search": "grid", "max_concurrent": 1}
LOOK_EVERY_S = 0.25
IDLE_S = 10


def layers(settings: Mapping[str, Any]) -> Any:
    optimizer = {"type": "SGD", "lr": 0.05, "momentum": 0.9}
    written = {
        "name": "layers",
        "task": "benchmarks.layers:Layers",
        "epochs": 1,
        "batch_size": 128,
        "optimizer": optimizer,
        "workers": {"count": 1},
    }
    return make_experiment({**written, "hooks": {"ema": {}}, "sweep": {**SWEEP, **settings}})


def digits(settings: Mapping[str, Any]) -> Any:
    experiment = load_experiment("experiments/digits.yaml", ["workers.count=1"]).source.written
    return make_experiment({**experiment, "workers": {"count": 1}, "sweep": {**SWEEP, **settings}})


class Model(NamedTuple):
    """The model of the experiment and of the handwritten sweep."""

    experiment: Callable[[Mapping[str, Any]], Any]
    by_hand: Mapping[str, Any]
    epochs: int


MODELS = {
    "training 10 times its validation": Model(
        layers, {"task": "benchmarks.layers:Layers", "batch_size": 128, "lr": 0.05}, 1
    ),
    "the digits": Model(digits, {**DIGITS, "lr": 0.1}, 5),
}


class Spent(NamedTuple):
    """Cost of some work."""

    processor_s: float
    wall_s: float


class Watch(Thread):
    """Adds up the processor time of this process and all its descendants; an ended process counts
    with its last known time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: dict[psutil.Process, float] = {}
        self._own_s, self.idle_s = 0.0, 0.0  # the latter in each second
        self._one_at_a_time = Lock()

    def run(self) -> None:
        while True:
            sleep(LOOK_EVERY_S)
            self._look()

    def spent(self, work: Callable[[], object]) -> Spent:
        """Return the cost of work, minus the cost of as long a time without it."""
        began, started = self._total_s(), perf_counter()
        work()
        wall_s = perf_counter() - started
        return Spent(self._total_s() - began - self.idle_s * wall_s, wall_s)

    def idle(self) -> None:
        """Measure the cost of a time without work."""
        sleep(IDLE_S)  # until Ray has started
        processor_s, wall_s = self.spent(lambda: sleep(IDLE_S))
        self.idle_s = processor_s / wall_s

    def _total_s(self) -> float:
        self._look()
        return process_time() - self._own_s + sum(self._seen.values())

    def _look(self) -> None:
        with self._one_at_a_time:
            began = thread_time()
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._seen[process] = times.user + times.system
            self._own_s += thread_time() - began


def sweep_in(
    folder: str, model: Model, decays: list[float], *, local: bool, **settings: Any
) -> Sweep:
    with redirect_stderr(StringIO()):
        done = sweep(
            model.experiment({"space": {"hooks.ema.decay": {"grid": decays}}, **settings}),
            folder,
            local=local,
        )
    assert set(done.trials["status"]) == {"finished"}
    return done


def training_to_validation(model: Model) -> float:
    """Return the time of a trial's training as a multiple of its validation."""
    with tempfile.TemporaryDirectory() as folder:
        rows = (
            sweep_in(folder, model, DECAYS[:1], local=True).runs[0].load_stats(["phase", "step_s"])
        )
    took = rows.groupby("phase", observed=True)["step_s"].sum()
    return float(took["train"] / took["val"])


def swept(model: Model, decays: list[float], *, local: bool = False, **settings: Any) -> None:
    """A sweep over decays."""
    with tempfile.TemporaryDirectory() as folder:
        sweep_in(folder, model, decays, local=local, **settings)


def swept_by_hand(model: Model, decays: list[float]) -> None:
    """The same by Ray Tune, a job of Ray Train for each."""
    job = train_job_trainable(model.epochs, ranks=1, poll_s=0.1)
    with tempfile.TemporaryDirectory() as folder:
        tuned(
            job, space={**model.by_hand, "decay": tune.grid_search(decays)}, at_once=1, reuse=False
        )(folder, 1)


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, watch: Watch
) -> dict[str, list[Spent]]:
    took: dict[str, list[Spent]] = {name: [] for name in contestants}
    for name in [*contestants] * rounds:
        took[name].append(watch.spent(contestants[name]))
    return took


def local_contestants(model: Model) -> dict[str, Callable[[], object]]:
    return {
        "one trial": partial(swept, model, DECAYS[:1], local=True),
        "8 decays, shared": partial(swept, model, DECAYS, local=True),
        "8 decays, each trained": partial(swept, model, DECAYS, local=True, share_training=False),
    }


def on_ray(model: Model) -> dict[str, Callable[[], object]]:
    return {
        "on Ray, one trial": partial(swept, model, DECAYS[:1]),
        "on Ray, 8 decays, shared": partial(swept, model, DECAYS),
        "on Ray, 8 decays, each trained on a warm gang": partial(
            swept, model, DECAYS, share_training=False
        ),
        "Tune over Ray Train by hand, one trial": partial(swept_by_hand, model, DECAYS[:1]),
        "Tune over Ray Train by hand, 8 decays": partial(swept_by_hand, model, DECAYS),
    }


def rows(took: Mapping[str, list[Spent]]) -> Iterator[tuple[str, ...]]:
    """Each compared with the one trial before it."""
    baseline: list[float] = []
    for name, spent in took.items():
        processor_s = [each.processor_s for each in spent]
        baseline = processor_s if name.endswith("one trial") else baseline
        yield (
            name,
            f"{median(processor_s):.2f}",
            f"{ratio(processor_s, baseline):.2f}",
            f"{median(each.wall_s for each in spent):.1f}",
        )


def main(rounds: int = 3, rounds_on_ray: int = 1) -> None:
    torch.set_num_threads(1)
    watch = Watch()
    watch.start()
    # A first trial of each is for what is set up once.
    shares = {name: training_to_validation(model) for name, model in MODELS.items()}
    took = {
        name: take_turns(local_contestants(model), rounds, watch) for name, model in MODELS.items()
    }
    if rounds_on_ray:
        measure_on_ray(took, rounds_on_ray, watch)
    for name in MODELS:
        title = (
            f"Eight decays: {name} (training to validation {shares[name]:.1f}; {rounds} rounds, {rounds_on_ray} on Ray,"
            " in turns)"
        )
        print_table(
            title, ("", "processor s, median", "to one trial", "wall s, median"), rows(took[name])
        )
    print(
        f"\nWithout work, and not counted: {watch.idle_s:.3f} processor s in each second of those on Ray."
    )


def measure_on_ray(took: Mapping[str, dict[str, list[Spent]]], rounds: int, watch: Watch) -> None:
    """Add what the contestants on Ray took."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    watch.idle()
    for name, model in MODELS.items():
        took[name].update(take_turns(on_ray(model), rounds, watch))
    ray.shutdown()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
