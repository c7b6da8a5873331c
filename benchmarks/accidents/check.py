"""Run a case through its accidents as a person would, and compare the end with the loop written by hand."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.accidents.cases import FILLER, Case, draw
from benchmarks.accidents.reference import Trained, train
from orchestrator import open_run, resume, run
from orchestrator.testing.trees import difference

DONE, FAILED, INTERRUPTED = 0, 1, 130
FULL, READ_ONLY = "No space left on device", "Read-only file system"
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "benchmarks.accidents.check",
        "orchestrator.engines.in_process",
        "orchestrator.loop.loop",
        "torch._dynamo",
        "pandas",
    ]
)  # so that each attempt begins in a tenth of a second


@dataclass
class Outcome:
    """What became of a case."""

    case: Case
    exit_codes: list[int] = field(default_factory=list)
    problem: str = ""
    """What differs from the loop written by hand; empty if nothing does."""


def check(seed: int, root: Path) -> Outcome:
    """Check the case of a seed, in a folder of its own below `root`."""
    outcome, folder = Outcome(draw(seed)), root / str(seed)
    (folder / "marks").mkdir(parents=True)
    with _disk(folder / "disk", outcome.case) as disk:
        outcome.problem = _survive(outcome, folder, disk) or _compare(disk / "case", train(outcome.case))
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


@contextmanager
def _disk(folder: Path, case: Case) -> Iterator[Path]:
    """Mount a small disk for the run. Without the right to mount, the disk's accidents become kills."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        case.places = [place.replace("fill", "kill") for place in case.places]
        case.damages = [damage.replace("read-only", "keep") for damage in case.damages]
        yield folder
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _survive(outcome: Outcome, folder: Path, disk: Path) -> str:
    """Run the case and resume it until it is done; return what went wrong, if anything."""
    damages = iter(outcome.case.damages)
    for _ in range(len(outcome.case.places) + 2):
        code, log = _attempt(outcome, folder, disk)
        if code == DONE:
            return ""
        if code not in (DONE, INTERRUPTED) and code >= 0 and not (code == FAILED and FULL in log):
            return log[-2000:]
        (disk / FILLER).unlink(missing_ok=True)
        damage = next(damages, "keep")
        if damage == "read-only":
            _remount(disk, "ro")
            code, log = _attempt(outcome, folder, disk)
            _remount(disk, "rw")
            if code != FAILED or READ_ONLY not in log:
                return f"on a read-only disk: exit code {code}\n{log[-2000:]}"
        else:
            _damage(disk, damage)
    return "never finished"


def _remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def _attempt(outcome: Outcome, folder: Path, disk: Path) -> tuple[int, str]:
    """Run or resume the case in a process; return its exit code and output."""
    process = _PROCESSES.Process(target=_run, args=(outcome.case, folder, disk))
    process.start()
    process.join()
    code = process.exitcode or DONE
    process.close()
    outcome.exit_codes.append(code)
    return code, (folder / "log.txt").read_text()


def _run(case: Case, folder: Path, disk: Path) -> None:
    """Begin or resume the run. In a process of its own, which ends with the exit code of the command line."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        if (disk / "case").exists():
            resumed = resume(disk / "case")
        else:
            resumed = run(case.experiment(folder / "marks", disk), storage=disk, local=True)
        sys.exit(INTERRUPTED if resumed.status == "interrupted" else DONE)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _damage(disk: Path, damage: str) -> None:
    """Cut or flip a file of the newest checkpoint; a resume then goes back to the one before."""
    checkpoints = sorted((disk / "case" / "checkpoints").glob("*/model.pt"), key=lambda path: path.stat().st_mtime)
    if damage == "keep" or len(checkpoints) < 2:
        return
    content = bytearray(checkpoints[-1].read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    checkpoints[-1].write_bytes(content)


def _compare(folder: Path, expected: Trained) -> str:
    result = open_run(folder)
    rows = result.stats
    rows = rows[rows["phase"] == "train"].sort_values("iteration")
    actual = {
        "iterations": rows["iteration"].tolist(),
        "losses": rows["loss"].astype(float).tolist(),
        "rates": rows["lr"].tolist() if "lr" in rows else expected.rates,
        "val_losses": [report["val/loss"] for report in result.reports() if "val/loss" in report],
        "model": _saved(result, "model.pt", "model"),
        "optimizer": _saved(result, "optimizer.pt", "optimizer"),
    }
    return difference(
        actual,
        {
            "iterations": list(range(1, len(expected.losses) + 1)),
            "losses": expected.losses,
            "rates": expected.rates,
            "val_losses": expected.val_losses,
            "model": dict(expected.model),
            "optimizer": expected.optimizer,
        },
    )


def _saved(result: Any, file: str, name: str) -> dict[str, Any]:
    state = torch.load(Path(result.checkpoint("last")) / file, weights_only=True)
    return dict(state.get(name, state))
