"""Run a case through its accidents as a person would, and compare the end with the loop written by hand."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.accidents.cases import Case, draw
from benchmarks.accidents.reference import Trained, train
from orchestrator import open_run, resume, run
from orchestrator.testing.trees import difference

DONE, INTERRUPTED = 0, 130
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
    marks = folder / "marks"
    marks.mkdir(parents=True)
    damages = iter(outcome.case.damages)
    for _ in range(len(outcome.case.places) + 2):
        code = _attempt(outcome.case, folder, marks)
        outcome.exit_codes.append(code)
        if code not in (DONE, INTERRUPTED) and code >= 0:
            outcome.problem = (folder / "log.txt").read_text()[-2000:]
            return outcome
        if code == DONE:
            break
        _damage(folder, next(damages, "keep"))
    torch.set_num_threads(1)
    outcome.problem = _compare(folder / "case", train(outcome.case))
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


def _attempt(case: Case, folder: Path, marks: Path) -> int:
    process = _PROCESSES.Process(target=_run, args=(case, folder, marks))
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    return code


def _run(case: Case, folder: Path, marks: Path) -> None:
    """Begin or resume the run. In a process of its own, which ends with the exit code of the command line."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        if (folder / "case").exists():
            resumed = resume(folder / "case")
        else:
            resumed = run(case.experiment(marks), storage=folder, local=True)
        sys.exit(INTERRUPTED if resumed.status == "interrupted" else DONE)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _damage(folder: Path, damage: str) -> None:
    """Cut or flip a file of the newest checkpoint; a resume then goes back to the one before."""
    checkpoints = sorted((folder / "case" / "checkpoints").glob("*/model.pt"), key=lambda path: path.stat().st_mtime)
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
