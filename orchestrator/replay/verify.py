"""Verification that training continues bit for bit from its checkpoints, on this machine, without
Ray or a run."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.engines.ray_data import can_use_ray_data
from orchestrator.errors import UsageError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.model.torch_settings import thread_count
from orchestrator.replay.causes import (
    explain_hidden_state,
    find_nondeterminism,
    find_unrestored,
)
from orchestrator.replay.differences import Difference, find_difference
from orchestrator.replay.recorded_training import train_ranks
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.task import has_custom_loop


@dataclass(frozen=True)
class Continuation:
    """Training that continued from a checkpoint in a fresh process, compared with training that did
    not stop."""

    checkpoint: str
    iteration: int
    """Iterations that the checkpoint has completed."""
    loader_workers: int
    difference: str = ""
    """The first difference; empty if all values are equal bit for bit."""
    causes: Sequence[str] = ()
    """State that the checkpoint did not restore, or other causes of the difference."""


def verify(experiment: CheckedExperiment) -> Iterator[Continuation]:
    """Train a few steps, continue from a checkpoint inside an epoch and from one at its end, and
    compare.

    Each training runs in fresh processes on this machine, with as many ranks as the experiment
    names. If the experiment has DataLoader workers and map-style data, the second continuation has
    another number of them. Raises UsageError if the experiment cannot be verified, or if its
    training fails.
    """
    resolved = experiment.get_resolved()
    _check_can_verify(resolved)
    ranks = resolved.experiment.workers.max_count
    workers = resolved.experiment.loader.num_workers
    threads = thread_count(resolved.experiment)
    train = partial(train_ranks, experiment.source, ranks=ranks, threads=threads)
    with tempfile.TemporaryDirectory(prefix="hookyard-verify-") as root:
        folder = Path(root, "uninterrupted")
        uninterrupted = train(folder=folder, loader_workers=workers)
        checkpoints = uninterrupted[0].checkpoints
        _check_has_checkpoints(uninterrupted[0])
        second: list[TrainingRecord] | None = None
        for iteration, checkpoint in sorted(checkpoints.items()):
            is_last = iteration == max(checkpoints)
            takes_another_number = workers > 0 and is_last and not uninterrupted[0].is_iterable
            other = workers + 1 if takes_another_number else workers
            continued = train(folder=folder, loader_workers=other, checkpoint=checkpoint)

            differing = _find_first_difference(uninterrupted, continued)
            if differing is None:
                yield Continuation(checkpoint, iteration, other)
                continue

            rank, difference = differing
            before = uninterrupted[rank].state.get(iteration, {})
            causes = find_unrestored(before, continued[rank].state.get(iteration, {}))
            if not causes:
                second = second or train(folder=Path(root, "second"), loader_workers=workers)
                nondeterminism = find_nondeterminism(uninterrupted[rank], second[rank])
                causes = [nondeterminism or explain_hidden_state(difference, before, workers)]
            prefix = f"rank {rank}: " if ranks > 1 else ""
            yield Continuation(checkpoint, iteration, other, prefix + difference.text, causes)


def _check_has_checkpoints(uninterrupted: TrainingRecord) -> None:
    """Raise UsageError if training ended before the first checkpoint."""
    if uninterrupted.checkpoints:
        return
    reasons = "; ".join(uninterrupted.stopped) or "the training data is used up"
    raise UsageError(
        f"training ended after iteration {uninterrupted.iterations} ({reasons}), before a checkpoint"
        " could be compared; leave out the hook that ends it, or give it more data"
    )


def _find_first_difference(
    uninterrupted: Sequence[TrainingRecord], continued: Sequence[TrainingRecord]
) -> tuple[int, Difference] | None:
    """Return the first rank whose trainings differ, and how; None if all are equal."""
    for rank, pair in enumerate(zip(uninterrupted, continued, strict=True)):
        difference = find_difference(*pair)
        if difference is not None:
            return rank, difference
    return None


def _check_can_verify(resolved: ResolvedExperiment) -> None:
    """Raise UsageError for an experiment that cannot be trained in processes on this machine."""
    if has_custom_loop(type(resolved.task)):
        raise UsageError(
            "the task has its own training loop, which saves what it gives to session.restore()"
        )
    if can_use_ray_data(type(resolved.task)):
        raise UsageError(
            "the task uses Ray Data, which needs a Ray cluster; verify it with a dataset of PyTorch"
        )
    workers = resolved.experiment.workers
    if workers.max_count > 1 and workers.gpu:
        raise UsageError(
            "ranks on several GPUs cannot be verified; set workers.count=1, or workers.gpu=false"
        )


def summarize(continuations: Iterable[Continuation]) -> Mapping[str, Any]:
    """Return the continuations as plain data."""
    entries = [vars(continuation) for continuation in continuations]
    return {"ok": not any(entry["difference"] for entry in entries), "continuations": entries}
