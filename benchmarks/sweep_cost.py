"""Cost of one more trial of a sweep beyond its own training, on a warm gang: small trials on the
digits, one at a time.

The claim: at most 0.5 s with one rank and 1 s with two. From the end of the first trial on the
processes are warm: the time from then to the end of the last, less what the other trials train and
validate, is shared out over them. It is the building of the model, a checkpoint after each of five
epochs, tables, TensorBoard, and Ray Tune's way from one trial to the next. Beside it a class
Trainable with actor reuse, written by hand.

    python -m benchmarks.sweep_cost [trials] [rounds]
"""

import sys
from statistics import mean, median

from benchmarks.handwritten_sweep import Contestant, class_trainable, hookyard, take_turns, tuned
from benchmarks.timing import print_table

EPOCHS = 5


def main(trials: int = 10, rounds: int = 2) -> None:
    settings = ("sweep.max_concurrent=1", f"epochs={EPOCHS}")
    contestants: dict[str, Contestant] = {
        "hookyard sweep, one rank": hookyard("workers.count=1", *settings),
        "hookyard sweep, two ranks": hookyard("workers.count=2", *settings),
        "class Trainable by hand, one rank": tuned(class_trainable(EPOCHS), at_once=1),
    }
    rows = []
    for name, took in take_turns(contestants, trials, rounds).items():
        each = [(cost.ends[-1] - cost.ends[0]) / (trials - 1) for cost in took]
        own = [mean(cost.own_s[1:]) for cost in took]
        beyond = [all_in_all - training for all_in_all, training in zip(each, own, strict=True)]
        first = median(cost.seconds - (cost.ends[-1] - cost.ends[0]) for cost in took)
        rows.append(
            (
                name,
                f"{median(each):.2f}",
                f"{median(own):.2f}",
                f"{median(beyond):.2f}",
                f"{max(beyond):.2f}",
                f"{first:.1f}",
            )
        )
    columns = [
        "sweep",
        "s, each further trial",
        "of it own training",
        "beyond it",
        "slowest round",
        "s, start, first trial and end",
    ]
    print_table(
        f"One more trial, one at a time (sweeps of {trials}, {rounds} rounds, in turns)",
        columns,
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
