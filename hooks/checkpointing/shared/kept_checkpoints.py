"""The regular checkpoints that a hook keeps."""

from collections.abc import Container


class KeptCheckpoints:
    """The regular checkpoints that a hook has not given up.

    Args:
        keep: Number of checkpoints to keep; None keeps all.
    """

    def __init__(self, keep: int | None) -> None:
        self._keep = keep
        self.names: list[str] = []
        """Their names, oldest first."""

    def add(self, name: str) -> None:
        """Add the newest checkpoint, which may replace one of the same name."""
        self.names = [known for known in self.names if known != name]
        self.names.append(name)

    def select_newest(self, *, count_next: bool = False) -> list[str]:
        """Return the checkpoints to keep.

        Args:
            count_next: Whether the next checkpoint, whose name is not known yet, is one of them.
        """
        if self._keep is None:
            return list(self.names)
        kept = self._keep - count_next
        return self.names[max(0, len(self.names) - kept) :]

    def drop_oldest(self) -> None:
        """Drop the checkpoints that are too many."""
        self.names = self.select_newest()

    def drop_deleted(self, stored: Container[str]) -> None:
        """Drop the checkpoints that are not stored any more."""
        self.names = [name for name in self.names if name in stored]
