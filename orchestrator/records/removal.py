"""Removing a run: what it holds, what hangs on it, and in which order it goes. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import UsageError
from orchestrator.records.run_folder import RunFolder, run_folders
from orchestrator.storage import Storage


@dataclass(frozen=True)
class Removal:
    """A run or a sweep that is to be removed."""

    folder: RunFolder
    kept_elsewhere: Sequence[Storage]
    """Where checkpoints lie that an `out_dir` put outside the folder."""
    successors: Sequence[RunFolder]
    """Runs beside it that went on from its checkpoints."""

    @classmethod
    def of(cls, path: str) -> Removal:
        """What goes with a run; raises UsageError where it is no run, under way, a trial, or another one still begins from it."""
        folder = RunFolder.open(path)
        if folder.status() == "running":
            raise UsageError(f"{folder} is under way: end it before it is removed")
        around = folder.storage.parent
        if around.name == "trials" and RunFolder(around.parent).exists():
            raise UsageError(f"{folder} is a trial, and its sweep's tables are made of all trials: remove the sweep, hookyard rm {around.parent}")
        successors = [other for other in run_folders(around) if (before := other.metadata().goes_on_from) and _within(before["run"], folder)]
        if lacking := [other for other in successors if not other.checkpoint_names()]:
            raise UsageError(f"{lacking[0]} goes on from {folder}, and has no checkpoint of its own yet: end or remove that first")
        runs = run_folders(folder.storage / "trials") if folder.metadata().sweep else [folder]
        elsewhere = [kept for run in runs if not _within((kept := run.kept_checkpoints()).path, folder)]
        return cls(folder, elsewhere, successors)

    def __str__(self) -> str:
        metadata = self.folder.metadata()
        what = f"a sweep of {len(run_folders(self.folder.storage / 'trials'))} trials" if metadata.sweep else "a run"
        files, size_bytes = self.folder.storage.usage()
        lines = [
            f"{self.folder}: {what}, {self.folder.status()}, begun {metadata.started}; {files} files, {size_bytes / 2**20:.1f} MiB",
            *(f"  with its checkpoints in {kept}" for kept in self.kept_elsewhere),
            *(f"  {other} went on from it, and stays as it is" for other in self.successors),
        ]
        return "\n".join(lines)

    def carry_out(self) -> None:
        """Removes it; `run.json` goes last, so that what is cut short can be taken up again."""
        for kept in self.kept_elsewhere:
            kept.parent.delete(kept.name)
        for name in self.folder.storage.names():
            if name != "run.json":
                self.folder.storage.delete(name)
        self.folder.storage.parent.delete(self.folder.name)


def _within(path: str, folder: RunFolder) -> bool:
    return f"{path}/".startswith(f"{folder.storage.path}/")
