"""Which rows were done again: judged by where the attempts began, never by what files say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.checkpoint.position import Stage
from orchestrator.records.metadata import Attempt

NEEDED = ("attempt", "phase", "iteration", "samples")
"""The columns of rows that it takes to judge."""


def superseded(attempts: Sequence[Attempt], names: Collection[str] = NEEDED) -> Any:
    """The expression that rows meet which were done again by a later attempt, as that began at a checkpoint before
    them; `names` are the columns that they have.

    A training row is superseded where its iteration lies past a later attempt's start; an evaluation row where the
    training samples seen by then do, or where the checkpoint was made after as many and before the validation. Steps
    would not do: micro-batches share one, and so does an iteration whose step was left out. Training that went on for
    other runs when this one was over is none of its own.
    """
    gone: Any = pc.scalar(False)
    training, test, samples = (
        pc.field("phase") == "train",
        pc.starts_with(pc.field("phase"), "test"),
        pc.field("samples"),
    )
    if "samples" not in names:
        samples = pc.scalar(pa.scalar(None, pa.int64()))
    for attempt in attempts:
        start = attempt.position
        seen_again = samples >= start.samples if start.stage <= Stage.TRAINED else samples > start.samples
        past = (training & (pc.field("iteration") > start.iteration)) | (~training & seen_again) | test
        gone |= (pc.field("attempt") < attempt.number) & past
        if attempt.until is not None:
            gone |= (pc.field("attempt") == attempt.number) & training & (pc.field("iteration") > attempt.until)
    return pc.coalesce(gone, pc.scalar(False))


def superseded_costs(attempts: Sequence[Attempt]) -> Any:
    """The same of the hooks' ledger, by the iteration that training had come to."""
    gone: Any = pc.scalar(False)
    for attempt in attempts:
        gone |= (pc.field("attempt") < attempt.number) & (pc.field("iteration") > attempt.position.iteration)
    return gone
