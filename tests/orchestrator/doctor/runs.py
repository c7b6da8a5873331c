"""Tables of synchronous training made by hand: every number in them is known."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OWN_S = {
    "other_s": 0.001,
    "data_wait_s": 0.002,
    "to_device_s": 0.001,
    "forward_s": 0.030,
    "loss_s": 0.002,
    "backward_s": 0.054,
    "optimizer_s": 0.006,
    "hooks_s": 0.004,
}
"""What a rank does on its own; an iteration in which nobody waits is 0.1 s."""


FALLING = np.linspace(2, 1, 200)[:, None]
"""The loss of a run that learns."""


def training(
    ranks: int = 2,
    iterations: int = 200,
    change: Callable[[dict[str, Floats]], None] | None = None,
    **columns: Any,
) -> pd.DataFrame:
    """Ranks that wait after the backward pass for the last of them; `change` makes some slower, in
    arrays of shape (iterations, ranks), to which each rank adds up to 1% of noise. More columns are
    arrays of that shape or numbers."""
    draw = np.random.default_rng(0)
    own = {
        span: seconds * draw.uniform(1, 1.01, (iterations, ranks))
        for span, seconds in OWN_S.items()
    }
    if change is not None:
        change(own)
    after = own["optimizer_s"] + own["hooks_s"]
    ready = sum(
        (own[span] for span in OWN_S if span not in ("optimizer_s", "hooks_s")),
        start=np.zeros((iterations, ranks)),
    )
    ready[1:] += after[:-1]
    last = ready.max(axis=1, keepdims=True)
    spans = {**own, "all_reduce_wait_s": last - ready}
    spans["step_s"] = sum(spans.values(), start=np.zeros((iterations, ranks)))
    shape = (iterations, ranks)
    more = {
        name: np.broadcast_to(np.asarray(value), shape).ravel() for name, value in columns.items()
    }
    return pd.DataFrame(
        {
            "rank": np.tile(np.arange(ranks), iterations),
            "node": [f"node{rank // 2}" for rank in range(ranks)] * iterations,
            "phase": "train",
            "epoch": 0,
            "iteration": np.repeat(np.arange(1, iterations + 1), ranks),
            "step": np.repeat(np.arange(1, iterations + 1), ranks),
            **{name: seconds.ravel() for name, seconds in spans.items()},
            **more,
        }
    )


def unmeasured(stats: pd.DataFrame) -> pd.DataFrame:
    """The table as it is where the wait is not measured, and so is part of the backward pass."""
    backward_s = stats["backward_s"] + stats["all_reduce_wait_s"]
    return stats.assign(backward_s=backward_s).drop(columns="all_reduce_wait_s")


def costs(*rows: tuple[int, str, str, int, float]) -> pd.DataFrame:
    """A ledger of hooks, from rank, hook, event, calls and seconds."""
    return pd.DataFrame(rows, columns=["rank", "hook", "event", "calls", "seconds"])


def slower(
    span: str, rank: int, seconds: float | Mapping[int, float] | Floats
) -> Callable[[dict[str, Floats]], None]:
    """Makes a rank slower in a span: always, in some iterations by their place from 0, or by an
    array."""

    def change(own: dict[str, Floats]) -> None:
        if isinstance(seconds, Mapping):
            for place, each in seconds.items():
                own[span][place, rank] += each
        else:
            own[span][:, rank] += seconds

    return change
