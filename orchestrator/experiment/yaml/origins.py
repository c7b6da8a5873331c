"""What a run starts from: a checkpoint of another run, or weights of a run or a file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ParentCheckpoint:
    """The checkpoint of another run that an experiment continues from."""

    run: str
    """Location of that run, without credentials."""
    checkpoint: str
    sha256: str
    """Hash of its manifest, which has the hashes of its files."""
    epoch: int
    """Completed epochs."""
    step: int

    def __str__(self) -> str:
        position = f"epochs completed: {self.epoch}, steps: {self.step}"
        return f"{self.run}, checkpoint {self.checkpoint} ({position})"


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run started from: their location and hash."""

    path: str
    """A run, a file or a folder."""
    checkpoint: str | None
    """Checkpoint of a run."""
    weights: str | None
    """Weights in a checkpoint: a file such as `model`, or an entry of one, such as `ema/model`. Or
    the entry of another file."""
    sha256: str
    """Hash of a checkpoint's manifest, of a file, or of the hashes of a folder's files."""

    def __str__(self) -> str:
        checkpoint = f", checkpoint {self.checkpoint}" if self.checkpoint else ""
        weights = f" ({self.weights})" if self.weights else ""
        return f"{self.path}{checkpoint}{weights}"
