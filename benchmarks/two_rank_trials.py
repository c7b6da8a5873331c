"""A whole sweep of eight small two-rank trials, beside Ray Tune over Ray Train as Ray's guide has
it, training the same.

The claim: at least 10 times less wall time. Ray is started once, before the clock runs, with three
CPUs: a trial by hand takes one for the function that starts the Train job and two for its workers,
    so that all run one trial at a time.
Ray Train looks for reports every 2 s where nothing is said, and each report waits for that; the
second by hand has it look every 0.1 s, as Hookyard does.

    python -m benchmarks.two_rank_trials [trials] [rounds]
"""

import sys

from benchmarks.handwritten_sweep import (
    hookyard,
    print_walls,
    take_turns,
    train_job_trainable,
    tuned,
)

EPOCHS = 5
RANKS = 2


def main(trials: int = 8, rounds: int = 1) -> None:
    contestants = {
        "Ray Tune over Ray Train by hand": tuned(
            train_job_trainable(EPOCHS, RANKS, poll_s=2.0), at_once=1, reuse=False
        ),
        "the same, polled every 0.1 s": tuned(
            train_job_trainable(EPOCHS, RANKS, poll_s=0.1), at_once=1, reuse=False
        ),
        "hookyard sweep": hookyard(
            f"workers.count={RANKS}", "sweep.max_concurrent=1", f"epochs={EPOCHS}"
        ),
    }
    took = take_turns(contestants, trials, rounds, num_cpus=3)
    print_walls(
        f"A sweep of {trials} two-rank trials, one at a time ({rounds} rounds, in turns)", took
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
