"""Cost of hooks in an iteration in which none of them has work to do.

The events of an iteration are fired as the loop fires them, without any training between. A turn is
many iterations, and plans go round robin; the cost is what an iteration takes longer than with no
hooks at all. The claims: 30 hooks that set an interval for an event cost at most 3 us together, and
each of the hooks that look into the model at most 2 us; TensorBoard's histograms too, by how much
more they cost than it does without them.

    python -m benchmarks.idle_hooks [rounds]
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.timing import Pause, print_table, take_turns
from hooks import HOOKS, Hook, Interval, Plan, State, at_interval
from hooks.hook import WITHIN_ITERATION

ITERATIONS = 900
SELDOM = 1000
"""An interval that no iteration of a turn reaches."""
SELDOM_STEPS = Interval(SELDOM, "steps")


@dataclass
class Paced(Hook):
    every: int | Interval = SELDOM

    @at_interval("every")
    def on_step(self, state: State) -> None: ...


class Unpaced(Hook):
    """A hook without an interval, which is called at every iteration only to find no work."""

    def on_step(self, state: State) -> None:
        if state.phase_iteration % SELDOM == 0:
            state.row["called"] = True


MAKERS: Mapping[str, Callable[..., Hook]] = HOOKS
"""The hooks by name; the type of HOOKS has only the constructor of Hook, which takes nothing."""
PLANS: Mapping[str, Mapping[str, Hook]] = {
    "no hooks": {},
    "30 hooks at one pace": {f"hook{number}": Paced() for number in range(30)},
    "30 hooks at three paces": {
        f"hook{number}": Paced((SELDOM, 2 * SELDOM, SELDOM_STEPS)[number % 3])
        for number in range(30)
    },
    "30 hooks without a pace": {f"hook{number}": Unpaced() for number in range(30)},
    "activation_stats": {"": MAKERS["activation_stats"](every=SELDOM_STEPS)},
    "optimizer_stats": {"": MAKERS["optimizer_stats"](every=SELDOM_STEPS)},
    "layer_memory": {"": MAKERS["layer_memory"](every=SELDOM_STEPS)},
    "memory_stats": {"": MAKERS["memory_stats"](every=SELDOM)},
    "perf_stats": {"": MAKERS["perf_stats"]()},
    "tensorboard": {"": MAKERS["tensorboard"](every=SELDOM)},
    "tensorboard with histograms": {
        "": MAKERS["tensorboard"](every=SELDOM, histograms=SELDOM_STEPS)
    },
    "profiler, before its window": {"": MAKERS["profiler"](skip_first=SELDOM)},
    "memory_snapshot": {"": MAKERS["memory_snapshot"]()},
}


def fire(hooks: Mapping[str, Hook], folder: Path, turns: int, pause: Pause) -> None:
    """Fires the events of training iterations, of which each makes a step."""
    plan, state = Plan(hooks), State(artifacts=folder, phase="train", stepped=True)
    plan.fire("on_start", state)
    for _ in range(turns):
        state.iteration = state.step = state.phase_iteration = 0
        for _ in range(ITERATIONS):
            for event in WITHIN_ITERATION[:-1]:
                if plan.calls[event]:
                    plan.fire(event, state)
            state.iteration += 1
            state.step += 1
            state.phase_iteration += 1
            if plan.calls["on_step"]:
                plan.fire("on_step", state)
        pause()
    plan.fire("on_end", state)


def main(rounds: int = 200) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds = take_turns(
            {
                name: lambda pause, hooks=hooks: fire(hooks, Path(folder), rounds + 1, pause)
                for name, hooks in PLANS.items()
            },
            rounds,
        )
    without = seconds.pop("no hooks")
    rows = []
    for name, times in seconds.items():
        cost = [(time - base) / ITERATIONS * 1e6 for time, base in zip(times, without, strict=True)]
        rows.append((name, f"{median(cost):.2f}"))
    print_table(
        f"Hooks with nothing to do ({rounds} turns of {ITERATIONS} iterations)",
        ["hooks", "us an iteration"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
