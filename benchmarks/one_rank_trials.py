"""A whole sweep of sixteen small one-rank trials, beside sweeps written by hand against Ray Tune
that train the same.

The claim: at most 1.10 times the wall time of a class Trainable with actor reuse. Ray is started
once, before the clock runs, and contestants take turns; each sweep starts its own processes and
runs as many trials at once as there are cores. Hookyard also records every iteration, verifies its
checkpoints and writes TensorBoard.

    python -m benchmarks.one_rank_trials [trials] [rounds]
"""

import sys

from benchmarks.handwritten_sweep import (
    class_trainable,
    function_trainable,
    hookyard,
    print_walls,
    take_turns,
    tuned,
)

EPOCHS = 5


def main(trials: int = 16, rounds: int = 3) -> None:
    contestants = {
        "class Trainable by hand, actors reused": tuned(class_trainable(EPOCHS)),
        "hookyard sweep": hookyard("workers.count=1", f"epochs={EPOCHS}"),
        "function by hand, actors reused": tuned(function_trainable(EPOCHS)),
    }
    took = take_turns(contestants, trials, rounds)
    print_walls(f"A sweep of {trials} one-rank trials ({rounds} rounds, in turns)", took)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
