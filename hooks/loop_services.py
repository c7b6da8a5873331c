"""Services that the loop offers to hooks beside the state: checkpoints, media, a display, a clock."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hooks.media import Encode, MediaEntry


class Checkpoints(Protocol):
    """The part of the checkpoint store that hooks may use; only the master's calls have an
    effect."""

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Keep these checkpoints for `owner`. A checkpoint that no owner keeps is deleted."""

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        """Label a stored checkpoint, for example `best`; `metric` is the metric by which it is
        best."""

    def find_evaluated_weights(self, name: str) -> str:
        """Return the key of a checkpoint's evaluated weights, such as `model` or `ema/model`."""

    def publish(
        self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]
    ) -> str:
        """Write parts of a stored checkpoint to `<folder>/<run>-<name>-<hash>.pt`, and return its
        path.

        `parts` maps the name of each part to its key in the checkpoint, such as `optimizer` or
        `ema/model`. The key `meta` is the manifest with `config`.
        """

    def list_names(self) -> list[str]:
        """Return the stored checkpoints, oldest first."""


def get_checkpoint_name(path: str) -> str:
    """Return the name of a checkpoint, such as `epoch-0003`, from its folder or URL."""
    return path.rstrip("/").rpartition("/")[2]


class Media(Protocol):
    """The images, figures and tables of a run. Used on rank 0."""

    count: int
    """Number of those in the index."""

    def put(self, entry: MediaEntry, encode: Encode) -> None:
        """Encode and write one in a thread; does not block. Raises ValueError if its name is that
        of another kind."""

    def follow(
        self,
        listener: Callable[[MediaEntry, bytes], None],
        is_wanted: Callable[[MediaEntry], bool] = lambda entry: False,
    ) -> None:
        """Call `listener` with each one and its file, in the thread that writes them; at once with
        those of earlier attempts that `is_wanted` selects."""


class Display(Protocol):
    """The terminal and the run's log, for the lines of rank 0."""

    def line(self, text: str) -> None:
        """Show a line of plain text and keep it in the log."""

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Update the progress bar of a label; it disappears when `completed` reaches `total`."""


class Clock(Protocol):
    """The clock of the loop."""

    recording: bool
    """True if the loop puts the spans of each iteration into its row."""
