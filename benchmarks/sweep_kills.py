"""Sweeps killed with SIGKILL at fourteen moments, resumed, and compared with undisturbed sweeps.

Four trials on the digits, of one rank or of two, checkpointed every five steps. A moment is an
event: a hook in a trial reaches it, or a file says that it is there. The driver's death takes Ray
    with it, and `hookyard resume` continues; if
a trial's process or another rank is killed, the sweep has to continue alone. What has to hold: the
same trials with the same values, in every report the same numbers and at the end the same weights,
bit by bit; every row of the tables once; and what had finished is left as it was.

    python -m benchmarks.sweep_kills [number of a moment ...]

Ends with 1 where something does not hold.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import yaml

from benchmarks.timing import print_table
from hooks import Hook, State
from orchestrator import Sweep, open_sweep

TRIALS = 4
EPOCHS = 3
STEPS = {1: 22 * EPOCHS, 2: 11 * EPOCHS}
"""Optimizer steps of a whole trial, by its ranks: 1,400 samples in batches of 64 on each."""
ATTEMPTS = 4
"""Attempts after which a sweep that is not over is given up."""
KEY = ["trial", "rank", "phase", "epoch", "iteration"]


# In the trials


@dataclass
class Kill(Hook):
    """Kills a process at an event of a trial, once, with SIGKILL; `mark` is a file that says it has
    happened."""

    event: str = ""
    """`step`, `load`, or `save`: in the middle of writing a file of a checkpoint."""
    mark: str = ""
    trial: int = 1
    step: int = 0
    """The first optimizer step at which it may happen."""
    rank: int = 0
    whom: str = "driver"
    """`driver`, `rank` (this process), or `both`, as when a machine goes down."""

    def on_step(self, state: State) -> None:
        if state.phase == "train" and self._is_here(state, "step"):
            self._kill(state)

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        if self._is_here(state, "load"):
            self._kill(state)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._state = state

    def rank_state_dict(self) -> dict[str, Any]:
        if not self._is_here(self._state, "save"):
            return {}
        return {"last words": _Bomb(lambda: self._kill(self._state))}

    def _is_here(self, state: State, event: str) -> bool:
        mine = (
            event == self.event
            and state.rank == self.rank
            and state.name == f"trial-{self.trial:04d}"
        )
        return mine and state.step >= self.step and not Path(self.mark).exists()

    def _kill(self, state: State) -> None:
        Path(self.mark).touch()
        if self.whom in ("driver", "both"):
            os.kill(
                json.loads((state.artifacts.parent.parent / "run.json").read_text())["pid"],
                signal.SIGKILL,
            )
        if self.whom in ("rank", "both"):
            os.kill(os.getpid(), signal.SIGKILL)


class _Bomb:
    """Goes off while it is pickled, so in the middle of a file."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._goes_off = kill

    def __reduce__(self) -> Any:
        self._goes_off()
        return (dict, ())


@dataclass
class Steps(Hook):
    """Writes a line into the sweep's `steps.txt` for every optimizer step that is made, however
    often."""

    def on_update(self, state: State) -> None:
        if state.is_master:
            with open(state.artifacts.parent.parent / "steps.txt", "a") as file:
                file.write(f"{state.name} {state.step + 1}\n")


# The moments


@dataclass(frozen=True)
class Moment:
    """When a process of a sweep is killed, and which."""

    name: str
    ranks: int = 1
    at_once: int = 1
    kills: tuple[dict[str, Any], ...] = ()
    """Arguments of the hook for each attempt of the sweep."""
    ended: int | None = None
    """Where no hook can be: the kill comes when this trial says that it has finished, or with -1
    when the sweep has begun."""
    whom: str = "driver"


def hook_moment(
    name: str, ranks: int = 1, at_once: int = 1, *kills: dict[str, Any], **kill: Any
) -> Moment:
    return Moment(name, ranks, at_once, kills or (kill,))


MOMENTS = [
    Moment("driver, before the first trial", ended=-1),
    hook_moment("driver, before the first report", event="step", trial=0, step=3),
    hook_moment(
        "driver, in mid-trial, two trials at once", at_once=2, event="step", trial=1, step=33
    ),
    hook_moment("driver, in mid-trial of two ranks", ranks=2, event="step", trial=1, step=17),
    hook_moment(
        "driver and trial, writing a checkpoint", event="save", trial=1, step=20, whom="both"
    ),
    Moment("driver, between two trials", ended=1),
    hook_moment("driver, at the last step of the last trial", event="step", trial=3, step=STEPS[1]),
    Moment("driver, after the last trial", ended=TRIALS - 1),
    hook_moment(
        "driver, and again as a trial is resumed",
        1,
        1,
        {"event": "step", "trial": 1, "step": 33},
        {"event": "load", "trial": 1},
    ),
    hook_moment(
        "trial's process, before the first report", event="step", trial=0, step=3, whom="rank"
    ),
    hook_moment(
        "rank 0 of two, in mid-trial", ranks=2, event="step", trial=1, step=17, whom="rank"
    ),
    hook_moment(
        "rank 1 of two, in mid-trial", ranks=2, event="step", trial=2, step=17, rank=1, whom="rank"
    ),
    hook_moment(
        "rank 1 of two, writing a checkpoint",
        ranks=2,
        event="save",
        trial=1,
        step=10,
        rank=1,
        whom="rank",
    ),
    Moment("trial's process, between two trials", ended=1, whom="rank"),
]


# One sweep


@dataclass
class Outcome:
    """Results and costs of a sweep."""

    sweep: Sweep
    attempts: int
    seconds: float
    finished_then: dict[str, str] = field(default_factory=dict)
    """The trials that had finished when the driver was killed, with what their run.json said."""

    def trained(self) -> Counter[str]:
        """Return the number of optimizer steps of each trial, repeated ones included."""
        return Counter(
            line.split()[0] for line in Path(self.sweep.path, "steps.txt").read_text().splitlines()
        )


def write_study(folder: Path, moment: Moment) -> Path:
    kills = {
        f"kill_{attempt}": {
            "type": "benchmarks.sweep_kills:Kill",
            "mark": str(folder / f"killed-{attempt}"),
            **kill,
        }
        for attempt, kill in enumerate(moment.kills)
    }
    study = {
        "base": str(Path("experiments/digits.yaml").absolute()),
        "name": "study",
        "epochs": EPOCHS,
        "workers": {"count": moment.ranks},
        "hooks": {
            "checkpoint": {"every": "5 steps", "keep": 2, "best": "val/accuracy"},
            "steps": {"type": "benchmarks.sweep_kills:Steps"},
            **kills,
        },
        "sweep": {
            "metric": "val/accuracy",
            "mode": "max",
            "search": "random",
            "trials": TRIALS,
            "max_concurrent": moment.at_once,
            "space": {
                "hooks.ema.decay": {"uniform": [0.5, 0.99]},
                "optimizer.lr": {"loguniform": [0.01, 0.5]},
            },
        },
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def carried_out(folder: Path, moment: Moment) -> Outcome:
    """Runs a sweep until it is over, resuming it as often as its driver dies."""
    path, started = folder / "runs/study", perf_counter()
    command = ["sweep", str(write_study(folder, moment)), "--storage", str(path.parent)]
    attempts, finished_then = 0, dict[str, str]()
    while True:
        attempts += 1
        ended = hookyard(folder, command, path, moment if attempts == 1 else None)
        if ended == 0:
            return Outcome(open_sweep(path), attempts, perf_counter() - started, finished_then)
        if ended != -signal.SIGKILL or attempts == ATTEMPTS:
            raise RuntimeError(
                f"{moment.name}: attempt {attempts} ended with {ended}:\n{(folder / 'log.txt').read_text()[-4000:]}"
            )
        finished_then |= finished(path)
        command = ["resume", str(path)]


def hookyard(folder: Path, command: list[str], path: Path, moment: Moment | None) -> int:
    """Call hookyard, kill the process of the moment if files mark it, and return the exit code."""
    with open(folder / "log.txt", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *command], stdout=log, stderr=log
        )
        if moment is not None and moment.ended is not None:
            file = path / (
                "run.json" if moment.ended < 0 else f"trials/trial-{moment.ended:04d}/run.json"
            )
            while (about := read_record(file)) is None or (
                moment.ended >= 0 and about["status"] != "finished"
            ):
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{moment.name}: it never came to that:\n{(folder / 'log.txt').read_text()[-4000:]}"
                    )
                sleep(0.001)
            os.kill(process.pid if moment.whom == "driver" else about["pid"], signal.SIGKILL)
        return process.wait()


def read_record(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text()) if file.exists() else None


def finished(path: Path) -> dict[str, str]:
    """Return the finished trials with their own records."""
    texts = {file.parent.name: file.read_text() for file in sorted(path.glob("trials/*/run.json"))}
    return {
        trial: text for trial, text in texts.items() if json.loads(text)["status"] == "finished"
    }


# The comparison


def differences(problems: Outcome, undisturbed: Outcome, ranks: int) -> list[str]:
    """Return the violated promises."""
    wrong = []
    mine, theirs = problems.sweep, undisturbed.sweep
    if mine.status != "finished" or mine.trials["status"].tolist() != ["finished"] * TRIALS:
        wrong.append(f"the sweep is {mine.status}, its trials {mine.trials['status'].tolist()}")
    if chosen(mine) != chosen(theirs):
        wrong.append("the trials' values differ")
    wrong += [
        f"the reports of {name} differ"
        for name, reports in reported(mine).items()
        if reports != reported(theirs).get(name)
    ]
    wrong += [
        f"the weights of {name} differ"
        for name, hashes in weights(mine).items()
        if hashes != weights(theirs).get(name)
    ]
    rows = mine.stats
    if rows.duplicated(KEY).any() or len(rows) != len(theirs.stats):
        wrong.append(
            f"{len(rows)} rows, {int(rows.duplicated(KEY).sum())} of them twice, where there should be"
            f" {len(theirs.stats)}"
        )
    for trial, text in problems.finished_then.items():
        if Path(mine.path, "trials", trial, "run.json").read_text() != text:
            wrong.append(f"{trial} had finished and was touched")
    trained = problems.trained()
    for run in mine.runs:
        once = run.name in problems.finished_then or len(run.folder.read_attempts()) == 1
        if once and trained[run.name] != STEPS[ranks]:
            wrong.append(
                f"{run.name} made {trained[run.name]} steps in one attempt instead of {STEPS[ranks]}"
            )
    return wrong


def chosen(sweep: Sweep) -> dict[str, Any]:
    return {run.name: run.folder.read_metadata().trial_settings.values for run in sweep.runs}


def reported(sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """Every trial's reports that count, without what measures time and memory."""
    kept = (
        "epoch",
        "step",
        "iteration",
        "samples",
        "train/loss",
        "train/accuracy",
        "val/loss",
        "val/accuracy",
    )
    return {
        run.name: [
            {name: report[name] for name in kept} for report in run.metrics.to_dict("records")
        ]
        for run in sweep.runs
    }


def weights(sweep: Sweep) -> dict[str, dict[str, str]]:
    """The hashes of the files of each trial's last checkpoint that hold weights, averages and the
    optimizer's state."""
    manifests = {
        run.name: json.loads(Path(run.checkpoint("last"), "manifest.json").read_text())
        for run in sweep.runs
    }
    return {
        name: {
            file: manifest["files"][file]["sha256"]
            for file in ("model.pt", "ema.pt", "optimizer.pt")
        }
        for name, manifest in manifests.items()
    }


def main(*numbers: int) -> int:
    failures, rows = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        chosen_ones = [
            (number, moment)
            for number, moment in enumerate(MOMENTS, 1)
            if not numbers or number in numbers
        ]
        calm = {}
        for ranks in sorted({moment.ranks for _, moment in chosen_ones}):
            folder = Path(scratch, f"calm-{ranks}")
            folder.mkdir()
            calm[ranks] = carried_out(folder, Moment("undisturbed", ranks))
        for number, moment in chosen_ones:
            folder = Path(scratch, str(number))
            folder.mkdir()
            problems = carried_out(folder, moment)
            wrong = differences(problems, calm[moment.ranks], moment.ranks)
            failures += bool(wrong)
            again = sum(problems.trained().values()) - TRIALS * STEPS[moment.ranks]
            rows.append(
                (
                    f"{number}. {moment.name}",
                    len(problems.finished_then),
                    problems.attempts,
                    again,
                    "; ".join(wrong) or "the same",
                )
            )
            print(
                f"{number}. {moment.name}: {rows[-1][-1]} ({problems.seconds:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    columns = [
        "killed",
        "finished by then",
        "attempts of the driver",
        f"steps made again, of {TRIALS * STEPS[1]} or {TRIALS * STEPS[2]}",
        "to undisturbed",
    ]
    print_table("Sweeps killed with SIGKILL and resumed", columns, rows)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
