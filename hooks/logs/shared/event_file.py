"""The event file of a run, which TensorBoard reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from hooks.logs.shared.newest_points import NewestPoints
from hooks.logs.shared.summaries import make_curves, make_histogram, make_media
from hooks.media import MediaEntry


class EventFile:
    """An open event file, which continues those that its folder has.

    Deletes their points from `x` on, and draws those again that the run had drawn at `x` when it
    saved the checkpoint that it resumes from.

    Args:
        folder: Folder of the run's event files.
        x: The current value of the axis.
        newest: The newest points in the checkpoint; the file adds its own.
        flush_s: Maximum seconds until a point is written.
    """

    def __init__(self, folder: Path, x: int, newest: NewestPoints, flush_s: int) -> None:
        is_resumed = folder.exists()
        self.writer = SummaryWriter(str(folder), purge_step=x, flush_secs=flush_s)
        self._newest = newest
        if is_resumed and newest.x == x:
            for point in newest.points:
                self._write(Summary.FromString(point), x)
        else:
            newest.points.clear()

    def begin(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the hyperparameters at once, because the run may be killed."""
        _, start, _ = hparams(hyperparameters, {})
        self._write(start)
        self.writer.flush()

    def end(self, hyperparameters: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write the names of the hyperparameters and metrics, and that the run has succeeded."""
        # SummaryWriter.add_hparams would open a second file, and TensorBoard stops reading the
        # first one then.
        experiment, _, end = hparams(hyperparameters, metrics)
        self._write(experiment)
        self._write(end)

    def draw_curves(self, values: Mapping[str, float], x: int) -> None:
        """Draw a point of each curve."""
        self._draw(make_curves(values), x)

    def draw_histograms(self, tensors: Mapping[str, Tensor], x: int) -> None:
        """Draw the finite values of each tensor."""
        for tag, tensor in tensors.items():
            histogram = make_histogram(tag, tensor, self.writer.default_bins)
            if histogram is not None:
                self._draw(histogram, x)

    def draw_media(self, entry: MediaEntry, data: bytes, x: int) -> None:
        """Draw an image, a figure or a table. Called in the thread that writes them."""
        self._write(make_media(entry, data), x)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        """Write everything and close the file; what is drawn later is left out."""
        self.writer.close()

    def _draw(self, summary: Any, x: int) -> None:
        """Write points, and keep them for a resumed run."""
        self._newest.add(x, summary.SerializeToString())
        self._write(summary, x)

    def _write(self, summary: Any, x: int | None = None) -> None:
        # Torch declares the writer of the file as None, which it is after `close`.
        file_writer: Any = self.writer.file_writer
        if file_writer is not None:
            file_writer.add_summary(summary, x)
