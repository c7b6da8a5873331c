"""Damage to a file of a run, and what a resume may lose by it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.disk.checkpoints.index import INDEX
from orchestrator.disk.checkpoints.manifest import MANIFEST
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor.integrity import check_files

CHECKPOINT = ("model.pt", "optimizer.pt", "hooks.pt", "rank-0000.pt", MANIFEST)
SETTINGS = ("run.json", "source.json", "experiment.yaml", "attempt.json")
ROWS, REPORTS = "rows-*", "metrics.jsonl"
FLIPPED = (*CHECKPOINT[:-1], REPORTS)
"""Files with a checksum of each byte."""
FILES = (*CHECKPOINT, INDEX, *SETTINGS, ROWS, ROWS, REPORTS, REPORTS)


@dataclass
class Damage:
    """A file that was cut short, or one bit of which was flipped."""

    kind: str
    file: str
    """Pattern of the file's name."""
    path: Path
    content: bytes
    """Its content before."""
    is_told: bool = False
    """True if the doctor's check or a resume names the file."""
    is_edit: bool = False
    """True if a resume takes it for an edit, and says so."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path.name}"

    def undo(self) -> None:
        """Put back a copy of the file."""
        self.path.write_bytes(self.content)


def cause(run: Path, planned: str) -> Damage | None:
    """Damage the newest file of a name, as planned in `cut model.pt 17`; the number is a seed for
    the place.

    Leaves the file of a run's only checkpoint alone, and files that there are none of.
    """
    kind, file, seed = planned.split()
    files = sorted(
        (path for path in run.rglob(file) if path.stat().st_size),
        key=lambda path: path.stat().st_mtime_ns,
    )
    if not files or (file in CHECKPOINT and len(files) < 2):
        return None
    done = Damage(kind, file, files[-1], files[-1].read_bytes())
    content, place = bytearray(done.content), random.Random(seed).randrange(len(done.content))
    if kind == "cut":
        del content[place:]
    else:
        content[place] ^= 1 << int(seed) % 8
    done.path.write_bytes(content)
    return done


def is_found(run: Path, done: Damage) -> bool:
    """Return whether a check of all files finds a damage."""
    wrong = {run / file.file for file in check_files(RunFolder(run)) if file.is_damaged_or_missing}
    return done.path in wrong or (done.file == ROWS and run / "stats" in wrong)


def lost(damages: Sequence[Damage]) -> set[str]:
    """Return what damages that were told may take from a run's results: `rows`, `reports`,
    `best`."""
    parts = {ROWS: "rows", REPORTS: "reports"}
    return {parts.get(damage.file, "best") for damage in damages if damage.is_told}


def find_leftovers(run: Path, temporary: Path) -> str:
    """Return what a finished run has left behind that nothing needs; empty if there is nothing."""
    kept = (".driver", ".artifacts")
    hidden = [path for path in run.rglob(".*") if path.name not in kept]
    left = [str(path) for path in (*hidden, *temporary.iterdir())]
    return f"left behind: {left}" if left else ""
