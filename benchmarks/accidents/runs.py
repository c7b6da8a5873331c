"""Random runs in one process, killed and resumed; each must equal a loop written by hand."""

import shutil
import subprocess
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accidents import damage, processes
from benchmarks.accidents.accident import FILLER, unhide
from benchmarks.accidents.cases import Case, draw
from benchmarks.accidents.damage import Damage
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, FAILED, INTERRUPTED, KILLED, MISUSED
from benchmarks.accidents.programs import MODELS
from benchmarks.accidents.reference import Trained, train
from orchestrator import Run, open_run, resume, run
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.testing.differences import find_difference

DISK = ("fill", "hide", "blink", "read-only")
GONE = (
    "the file does not exist",
    "is missing",
    "was removed, or the claim of its driver",
    "No such file or directory",
)
LAST_WORDS = {
    "fill": ("No space left on device",),
    "hide": GONE,
    "blink": GONE,
    "memory": ("memory",),
}
"""Parts of the error after an accident that does not end the process itself."""
EDIT = "was edited"


def check(seed: int, root: Path) -> Outcome:
    """Check the case of a seed, in a folder of its own below `root`."""
    outcome, folder = Outcome(draw(seed)), root / str(seed)
    with _disk(folder / "disk", outcome.case) as disk:
        case, damages = outcome.case, list[Damage]()
        outcome.problem = _survive(outcome, folder, disk, damages)
        if not outcome.problem and not any(done.is_edit for done in damages):
            expected = expect(case, root / f"{seed}-calm")
            outcome.problem = compare(
                results(open_run(disk / "case")), expected, damage.lost(damages)
            )
    outcome.accidents += processes.accidents(folder)
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


@contextmanager
def _disk(folder: Path, case: Case) -> Iterator[Path]:
    """Mount a small disk for the run. Without the right to mount, the disk's accidents become
    kills."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        case.places = [
            "kill " + place.partition(" ")[2] if place.startswith(DISK) else place
            for place in case.places
        ]
        case.damages = ["keep" if planned == "read-only" else planned for planned in case.damages]
        yield folder
        return
    try:
        yield folder
    finally:
        unhide(folder)
        subprocess.run(["umount", str(folder)], check=True)


def _survive(outcome: Outcome, folder: Path, disk: Path, damages: list[Damage]) -> str:
    """Run the case and resume it until it is done; return what went wrong, if anything."""
    case, planned = outcome.case, iter(outcome.case.damages)
    expected = [
        words for place in case.places for words in LAST_WORDS.get(place.partition(" ")[0], ())
    ]
    done: Damage | None = None
    for _ in range(2 * len(case.places) + 2):
        code, log = _attempt(outcome, folder, disk)
        unhide(disk)
        if done and code == MISUSED and done.path.name in log:
            done.undo()
            done = None
            continue
        if done:
            done.is_edit = done.file in damage.SETTINGS and EDIT in log
            done.is_told = done.is_told or done.path.name in log
            damages.append(done)
            done = None
        if code == DONE:
            for earlier in damages:
                earlier.is_told = earlier.is_told or damage.is_found(disk / "case", earlier)
            return damage.find_leftovers(disk / "case", folder / "tmp")
        if damages and damages[-1].is_edit:
            return ""  # of another experiment than before
        if code not in (INTERRUPTED, KILLED) and not (
            code == FAILED and any(words in log for words in expected)
        ):
            return f"exit code {code} after {done or 'no damage'}\n{log[-2000:]}"
        (disk / FILLER).unlink(missing_ok=True)
        kind = next(planned, "keep")
        if kind == "read-only":
            if problem := _resume_read_only(outcome, folder, disk):
                return problem
        elif kind != "keep":
            done = damage.cause(disk / "case", kind)
            if done:
                outcome.accidents.append(f"{done.kind} {done.file}")
                done.is_told = damage.is_found(disk / "case", done)
    return "never finished"


def _resume_read_only(outcome: Outcome, folder: Path, disk: Path) -> str:
    outcome.accidents.append("read-only")
    _remount(disk, "ro")
    code, log = _attempt(outcome, folder, disk)
    _remount(disk, "rw")
    if code not in (FAILED, MISUSED) or "Read-only file system" not in log:
        return f"on a read-only disk: exit code {code}\n{log[-2000:]}"
    return ""


def _remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def _attempt(outcome: Outcome, folder: Path, disk: Path) -> tuple[int, str]:
    code, log = processes.run(_run, folder, outcome.case, folder, disk)
    outcome.exit_codes.append(code)
    return code, log


def _run(case: Case, folder: Path, disk: Path) -> str:
    """Begin or resume the run, and return its status."""
    if (disk / "case").exists():
        return resume(disk / "case").status
    return run(case.experiment(folder / "marks", disk), storage=disk, local=True).status


def expect(case: Case, folder: Path) -> dict[str, Any]:
    """Return the results of a loop written by hand, or else of the run without accidents."""
    if case.program in MODELS:
        return _collect_results(train(case))
    folder.mkdir()
    outcome = Outcome(replace(case, places=[], damages=[]))
    problem = _survive(outcome, folder, folder, [])
    assert not problem, problem
    expected = results(open_run(folder / "case"))
    shutil.rmtree(folder)
    return expected


def _collect_results(trained: Trained) -> dict[str, Any]:
    return {
        "rows": [list(row) for row in zip(trained.losses, trained.rates, strict=True)],
        "reports": trained.val_losses,
        "model": dict(trained.model),
        "optimizer": trained.optimizer,
        "best": [min(trained.val_losses), trained.best],
    }


def results(result: Run) -> dict[str, Any]:
    """Return everything of a run that accidents must not change."""
    rows = result.load_stats(where="phase = 'train'").sort_values("iteration")
    rates = rows["lr"].astype(float) if "lr" in rows else [0.0] * len(rows)
    best = result.best
    return {
        "rows": [list(row) for row in zip(rows["loss"].astype(float), rates, strict=True)],
        "reports": [report["val/loss"] for report in result.reports() if "val/loss" in report],
        "model": _saved(result, "model.pt", "model"),
        "optimizer": _saved(result, "optimizer.pt", "optimizer"),
        "best": best and [best.value, dict(result.weights("best"))],
    }


def _saved(result: Run, file: str, name: str) -> dict[str, Any]:
    checkpoints = open_checkpoints(result.folder)
    last = checkpoints.resolve("last")
    state = checkpoints.load(last, file) if file in checkpoints.read_manifest(last)["files"] else {}
    return dict(state.get(name, state))


def compare(actual: dict[str, Any], expected: dict[str, Any], lost: Set[str] = frozenset()) -> str:
    """Return the first difference. Rows and reports that were in damaged files may be missing."""
    for part in lost & {"rows", "reports"}:
        expected[part] = [value for value in expected[part] if value in actual[part]]
    return find_difference(actual, expected, varies=["best"] if lost else [])
