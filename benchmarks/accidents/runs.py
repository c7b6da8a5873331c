"""Random runs in one process, killed and resumed; each must equal a loop written by hand."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.accidents import processes
from benchmarks.accidents.cases import FILLER, Case, draw
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, FAILED, INTERRUPTED, KILLED
from benchmarks.accidents.reference import Trained, train
from orchestrator import open_run, resume, run
from orchestrator.testing.trees import difference

FULL, READ_ONLY = "No space left on device", "Read-only file system"


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
        if code not in (INTERRUPTED, KILLED) and not (code == FAILED and FULL in log):
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
    code, log = processes.run(_run, folder / "log.txt", outcome.case, folder, disk)
    outcome.exit_codes.append(code)
    return code, log


def _run(case: Case, folder: Path, disk: Path) -> str:
    """Begin or resume the run, and return its status."""
    if (disk / "case").exists():
        return resume(disk / "case").status
    return run(case.experiment(folder / "marks", disk), storage=disk, local=True).status


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
