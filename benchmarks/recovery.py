"""Time from the SIGKILL of one of two ranks to the next step that had not been made before.

Each contestant is one run of two ranks in which a rank, drawn from the seed, is killed ten times,
two steps after a checkpoint. A rank sleeps 20 ms in these steps, so two repeated steps cost 0.04 s,
and a second in the others, so that a new spare process is ready for the next kill.
`Ray Train by hand` is Ray's own restart: `TorchTrainer` with `FailureConfig`, polled every 0.1 s.

    python -m benchmarks.recovery [--folder FOLDER] [--seed 0] [--kills 10] [CONTESTANT ...]

`--folder` keeps the events of each run; a run that is already there is not repeated.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import print_table
from hooks import Hook, State
from orchestrator.engines.ray_connection import Ray

EVERY = 20
"""Steps between two kills."""
STEP_S, LONG_STEP_S = 0.02, 1.0
"""Seconds that a rank sleeps in a step, near a kill and elsewhere."""


def kill_steps(kills: int) -> list[int]:
    """Return the steps after which a rank is killed; each comes two steps after a checkpoint."""
    return [EVERY * number + 2 for number in range(1, kills + 1)]


def record_step(events: Path, rank: int, step: int, victims: dict[int, int]) -> None:
    """Write a step of rank 0 into `events`, and end this process if it is the victim of a step,
    once. On each rank."""
    time.sleep(STEP_S if step % EVERY < 5 else LONG_STEP_S)
    if victims.get(step) == rank and f'"killed": {step},' not in (
        events.read_text() if events.exists() else ""
    ):
        _append(events, {"killed": step, "rank": rank, "at": time.time()})
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        _append(events, {"step": step, "at": time.time()})


def _append(events: Path, event: dict[str, Any]) -> None:
    with events.open("a") as file:
        file.write(json.dumps(event) + "\n")


@dataclass
class Killer(Hook):
    """Kills a rank after some steps."""

    events: str = ""
    seed: int = 0
    kills: int = 10

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            record_step(
                Path(self.events), state.rank, state.step, draw_victims(self.seed, self.kills)
            )


def draw_victims(seed: int, kills: int) -> dict[int, int]:
    """Return the rank to kill after each step."""
    draw = random.Random(seed)
    return {step: draw.randrange(2) for step in kill_steps(kills)}


def hookyard(engine: Any, *overrides: str) -> Callable[[Path, int, int], None]:
    """Return a contestant: a run of Hookyard on an engine."""

    def train(folder: Path, seed: int, kills: int) -> None:
        from orchestrator import load_experiment, run

        killer = {"type": "benchmarks.recovery:Killer", "events": str(folder / "events.jsonl")}
        settings = {
            "workers": {"count": 2},
            "epochs": None,
            "steps": EVERY * (kills + 1),
            "max_failures": -1,
            "hooks.checkpoint.every": "5 steps",
            "hooks.killer": {**killer, "seed": seed, "kills": kills},
        }
        written = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
        run(
            load_experiment("experiments/digits.yaml", [*written, *overrides]),
            folder,
            "run",
            engine=engine,
        )

    return train


def train_by_hand(folder: Path, seed: int, kills: int) -> None:
    """Train with Ray Train as its guide has it."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        _train_rank_by_hand,
        train_loop_config={"events": str(folder / "events.jsonl"), "seed": seed, "kills": kills},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=str(folder), failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()


def _train_rank_by_hand(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.nn import functional

    from experiments.digits import Digits

    context, task = ray.train.get_context(), Digits()
    model = prepare_model(task.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, victims = 0, draw_victims(config["seed"], config["kills"])
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as path:
            saved = torch.load(Path(path) / "all.pt")
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    loader = torch.utils.data.DataLoader(task.data()["train"], batch_size=32, drop_last=True)
    while step < EVERY * (config["kills"] + 1):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                with tempfile.TemporaryDirectory() as path:
                    state = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step,
                    }
                    torch.save(state, Path(path) / "all.pt")
                    is_first = context.get_world_rank() == 0
                    ray.train.report(
                        {}, checkpoint=ray.train.Checkpoint(path) if is_first else None
                    )
            record_step(Path(config["events"]), context.get_world_rank(), step, victims)


CONTESTANTS = {
    "Ray Train by hand": train_by_hand,
    "hookyard run": hookyard("train"),
    "hookyard run --engine gang": hookyard("gang"),
    "the same, workers.spares=1": hookyard("gang", "workers.spares=1"),
}


def recovery_times(events: Path) -> list[tuple[float, float]]:
    """Return for each kill the seconds to the first step of the next attempt, and to the first new
    step."""
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    steps = [(line["step"], line["at"]) for line in lines if "step" in line]
    return [
        (
            min(at for step, at in steps if at > kill["at"] and step == kill["killed"] - 1)
            - kill["at"],
            min(at for step, at in steps if at > kill["at"] and step > kill["killed"]) - kill["at"],
        )
        for kill in lines
        if "killed" in kill
    ]


def measure(name: str, folder: Path, seed: int, kills: int) -> list[tuple[float, float]]:
    """Return the times of a contestant, of an earlier call if its run is complete."""
    mine = folder / name.replace(" ", "-").replace(",", "")
    events, done = mine / "events.jsonl", mine / "done"
    if not done.exists():
        if mine.exists():
            mine.rename(f"{mine}.incomplete-{time.time_ns()}")
        mine.mkdir(parents=True)
        CONTESTANTS[name](mine, seed, kills)
        done.touch()
    return recovery_times(events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CONTESTANTS), metavar="CONTESTANT")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, Ray(num_cpus=4):
        for name in options.names:
            times = measure(
                name, (options.folder or Path(scratch)).absolute(), options.seed, options.kills
            )
            again, new = zip(*times, strict=True)
            rows.append(
                (
                    name,
                    *(
                        f"{seconds:.1f}"
                        for seconds in (median(again), median(new), min(new), max(new))
                    ),
                )
            )
    title = f"From the SIGKILL of one of two ranks to the next step ({options.kills} kills, seed {options.seed})"
    print_table(title, ["", "s to a step, median", "s to a new step, median", "min", "max"], rows)


if __name__ == "__main__":
    main()
