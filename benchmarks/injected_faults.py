"""Faults put into simulated runs of 2 to 64 ranks: the share that the findings detect, and the
share of false findings.

A run is simulated as a synchronous step works: a rank computes alone up to its gradients, all wait
for the last of them, and what comes after the exchange delays the next one. Every rank has a speed
of its own, noise that resembles that of the iteration before, a jitter with a long tail and rare
spikes of a Pareto tail, of up to an iteration; loaders stop at every epoch's start, one rank logs
now and then; memory settles, is reallocated, comes and goes. Each fault and each clean run differs
in ranks, times, size, rank and moment, and is drawn from its own seed.

The claim: the rank and the span are right in 99 % of the faults of more than 10 % of an iteration,
and at most 1 % of the clean runs get a finding on a rank or on memory.

    python -m benchmarks.injected_faults [seed] [cases of each fault and size] [numbers of ranks
    ...] [faults ...]

Faults are named as in SIZES; without names it is all of them. Where leaks alone are asked for, the
clean runs are all as long as those with leaks.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.timing import print_table
from orchestrator.doctor import Finding, diagnose

Floats = NDArray[np.float64]

RANKS = (2, 3, 4, 8, 16, 32, 64)
BEFORE = ("other_s", "data_wait_s", "to_device_s", "forward_s", "loss_s", "backward_s")
"""Spans before the exchange of gradients; `optimizer_s` and `hooks_s` come after it."""
SHARES = {
    "other_s": 0.02,
    "data_wait_s": 0.03,
    "to_device_s": 0.02,
    "forward_s": 0.3,
    "loss_s": 0.03,
    "backward_s": 0.5,
    "optimizer_s": 0.07,
    "hooks_s": 0.03,
}
"""Of an iteration in which nobody waits."""
COMPUTE = ("forward_s", "loss_s", "backward_s", "optimizer_s")
SIZES = {
    "slow data": (0.05, 0.12, 0.25, 0.5),
    "slow compute": (0.05, 0.12, 0.25, 0.5),
    "slow hook": (0.05, 0.12, 0.25, 0.5),
    "drift": (0.05, 0.12, 0.25, 0.5),
    "periodic stall": (0.3, 0.6, 2.0),
    "one-off stall": (5.0, 10.0, 40.0),
    "leak": (0.05, 0.08, 0.12, 0.3),
    "memory imbalance": (0.3, 0.6, 1.2),
}
"""Units of the sizes: a share of an iteration for compute of the rank's own work, for a drift at
its end, for stalls of one iteration each; of the memory that is held, for leaks over the run."""
SPAN = {"slow data": "data_wait_s", "slow compute": "backward_s", "slow hook": "hooks_s"}
"""Where a fault is; a slow machine loses most in its longest span."""
STALLED = ("data_wait_s", "forward_s", "backward_s", "hooks_s")
MEMORY = ("leak", "memory imbalance")
MEMORY_PROBLEMS = {"leak": "leak", "imbalance": "memory imbalance", "room": "memory imbalance"}
CLEAN = "clean"
PATTERN = {"drift": "drifting", "periodic stall": "stalls", "one-off stall": "stalls"}


@dataclass(frozen=True)
class Fault:
    """A fault to put into a run."""

    kind: str
    size: float
    rank: int
    span: str
    at: int = 0
    period: int = 0


def simulate(
    draw: np.random.Generator, ranks: int, iterations: int, fault: Fault | None
) -> pd.DataFrame:
    """The stats table of a run of synchronous training."""
    step_s = float(10 ** draw.uniform(-2, 0))
    times = {
        span: step_s * (share * noise(draw, iterations, ranks)) for span, share in SHARES.items()
    }
    for seconds in times.values():
        seconds += step_s * spikes(draw, seconds.mean() / step_s, seconds.shape)
    epoch = int(draw.integers(40, 200))
    times["data_wait_s"][::epoch] += (
        step_s
        * draw.lognormal(0, 0.3, (len(range(0, iterations, epoch)), 1))
        * draw.uniform(0.9, 1.1, ranks)
    )
    times["hooks_s"][:: int(draw.integers(10, 60)), 0] += 0.02 * step_s
    times["data_wait_s"][0] += step_s * draw.lognormal(1, 0.5, ranks)
    if fault is not None and fault.kind not in MEMORY:
        times = injected(times, fault, step_s)
    spans = lived_together(times, communication_s=0.05 * step_s)
    held = memory(draw, iterations, ranks, fault)
    return table(spans, held, -(-ranks // 8), epoch)


def noise(draw: np.random.Generator, iterations: int, ranks: int) -> Floats:
    """Factors about 1: each rank's speed, what the machine does to all, what stays for a while, and
    a jitter."""
    speed = draw.normal(1, 0.005, ranks)
    shared = draw.lognormal(0, 0.02, (iterations, 1))
    lasting = np.zeros((iterations, ranks))
    shocks = draw.normal(0, 0.01, (iterations, ranks))
    for index in range(1, iterations):
        lasting[index] = 0.9 * lasting[index - 1] + shocks[index]
    jitter = draw.lognormal(-0.02, 0.05, (iterations, ranks))
    factors: Floats = np.clip(speed + lasting, 0.5, None) * shared * jitter
    return factors


def spikes(draw: np.random.Generator, share: float, shape: tuple[int, ...]) -> Floats:
    """In one of 500 rows: a span that takes more of an iteration, by a Pareto tail of exponent 2.5
    up to a whole one."""
    return np.asarray(
        (draw.random(shape) < 0.002) * np.minimum(share * draw.pareto(2.5, shape), 1.0), dtype=float
    )


def injected(times: dict[str, Floats], fault: Fault, step_s: float) -> dict[str, Floats]:
    """The times with the fault in them."""
    own, iterations = fault.rank, len(times["forward_s"])
    if fault.kind == "slow compute":
        for span in COMPUTE:
            times[span][:, own] *= 1 + fault.size
    elif fault.kind == "drift":
        times[fault.span][:, own] += fault.size * step_s * np.linspace(0, 1, iterations)
    elif fault.kind == "periodic stall":
        times[fault.span][fault.at :: fault.period, own] += fault.size * step_s
    elif fault.kind == "one-off stall":
        times[fault.span][fault.at, own] += fault.size * step_s
    else:
        times[fault.span][:, own] += fault.size * step_s
    return times


def lived_together(times: dict[str, Floats], communication_s: float) -> dict[str, Floats]:
    """The spans as ranks that exchange their gradients measure them."""
    before = sum((times[span] for span in BEFORE), start=np.zeros_like(times["forward_s"]))
    after = times["optimizer_s"] + times["hooks_s"]
    wait, ended = np.zeros_like(before), np.zeros(before.shape[1])
    for index in range(len(before)):
        ready = ended + before[index]
        exchanged = ready.max() + communication_s
        wait[index] = exchanged - ready
        ended = exchanged + after[index]
    return {**times, "all_reduce_wait_s": wait, "step_s": before + wait + after}


def memory(draw: np.random.Generator, iterations: int, ranks: int, fault: Fault | None) -> Floats:
    """Return resident bytes: the start, the level that they settle at, reallocations, and temporary
    memory."""
    x = np.arange(iterations)[:, None]
    held = 2**30 * draw.uniform(0.95, 1.05, ranks) * (1 - 0.3 * np.exp(-x / draw.uniform(5, 40)))
    for _ in range(int(draw.integers(0, 4))):
        held = held * (1 + 0.02 * (x >= draw.integers(0, iterations, ranks)))
    lasting = np.zeros((iterations, ranks))
    for index in range(1, iterations):
        lasting[index] = 0.95 * lasting[index - 1] + draw.normal(0, 0.002, ranks)
    held = held * (1 + lasting)
    if fault is not None and fault.kind == "leak":
        held[:, fault.rank] += fault.size * 2**30 * x[:, 0] / iterations
    if fault is not None and fault.kind == "memory imbalance":
        held[:, fault.rank] *= 1 + fault.size
    return np.asarray(np.where(x % 10 == 0, held, np.nan), dtype=float)


def table(spans: dict[str, Floats], held: Floats, nodes: int, epoch: int) -> pd.DataFrame:
    iterations, ranks = held.shape
    rank = np.tile(np.arange(ranks), iterations)
    iteration = np.repeat(np.arange(1, iterations + 1), ranks)
    return pd.DataFrame(
        {
            "rank": rank,
            "node": [f"node{each % nodes}" for each in rank],
            "phase": "train",
            "epoch": (iteration - 1) // epoch,
            "iteration": iteration,
            "step": iteration,
            "batch_size": 32,
            **{name: seconds.ravel() for name, seconds in spans.items()},
            "rss_bytes": held.ravel(),
        }
    )


def draw_fault(
    draw: np.random.Generator, kind: str, size: float, ranks: int, iterations: int
) -> Fault:
    """A fault of a kind and size, at a rank, span and moment of its own."""
    span = SPAN.get(kind) or str(draw.choice(STALLED))
    period = int(draw.choice([5, 8, 10, 25]))
    at = int(
        draw.integers(0, period) if kind == "periodic stall" else draw.integers(10, iterations)
    )
    return Fault(kind, size, int(draw.integers(ranks)), span, at, period)


@dataclass(frozen=True)
class Case:
    """A simulated run: its fault, or None for a clean run, and its findings, the most serious
    first."""

    ranks: int
    fault: Fault | None
    blamed: tuple[Finding, ...]

    @property
    def answer(self) -> str:
        """Return whether the most serious finding is right, and whether it blames another rank
        too."""
        fault = self.fault
        assert fault is not None
        if not self.blamed:
            return "missed"
        first = self.blamed[0].numbers
        if first["rank"] != fault.rank:
            return "other rank"
        if (self.diagnosis in MEMORY) != (fault.kind in MEMORY) or (
            fault.kind in MEMORY and self.diagnosis != fault.kind
        ):
            return "other kind"
        if fault.kind not in MEMORY and first["span"] != fault.span:
            return "other span"
        if fault.kind not in MEMORY and self.diagnosis != PATTERN.get(fault.kind, "chronic"):
            return "other pattern"
        ranks = {
            rank
            for finding in self.blamed
            for rank in finding.numbers.get("ranks", [finding.numbers["rank"]])
        }
        return "right" if ranks == {fault.rank} else "another too"

    @property
    def diagnosis(self) -> str:
        """The pattern or the problem of the most serious finding."""
        if not self.blamed:
            return "nothing"
        numbers = self.blamed[0].numbers
        return str(
            numbers["pattern"]
            if self.blamed[0].kind == "straggler"
            else MEMORY_PROBLEMS[numbers["problem"]]
        )


def case(seed: tuple[int, ...], ranks: int, kind: str, size: float, long: float) -> Case:
    """A run drawn from a seed of its own. Memory is read at every tenth iteration, so that runs
    with leaks are longer, and so is this share of the clean ones."""
    draw = np.random.default_rng(seed)
    longer = kind == "leak" or (kind == CLEAN and draw.random() < long)
    iterations = int(draw.integers(600, 1200) if longer else draw.integers(200, 800))
    fault = draw_fault(draw, kind, size, ranks, iterations) if kind != CLEAN else None
    findings = diagnose(simulate(draw, ranks, iterations, fault)).findings
    return Case(
        ranks,
        fault,
        tuple(finding for finding in findings if finding.kind in ("straggler", "memory")),
    )


def cases(
    seed: int, each: int, numbers_of_ranks: Sequence[int], kinds: Collection[str]
) -> Iterator[tuple[str, float, Case]]:
    """Yield a number of runs for each fault and size, and as many clean runs as faulty ones, a
    third of them as long as those with leaks."""
    every = [(kind, size) for kind, sizes in SIZES.items() for size in sizes]
    wanted = [place for place, (kind, _) in enumerate(every) if kind in kinds]
    long = 1.0 if set(kinds) == {"leak"} else 1 / 3
    for place in (*wanted, *(len(every) + place for place in wanted)):
        kind, size = every[place] if place < len(every) else (CLEAN, 0.0)
        for index in range(each):
            yield (
                kind,
                size,
                case(
                    (seed, place, index),
                    numbers_of_ranks[index % len(numbers_of_ranks)],
                    kind,
                    size,
                    long,
                ),
            )


def main(seed: int = 0, each: int = 14, *numbers_of_ranks: int, kinds: Sequence[str] = ()) -> None:
    started = perf_counter()
    results = list(cases(seed, each, numbers_of_ranks or RANKS, kinds or tuple(SIZES)))
    how = f"seed {seed}, {each} of each, ranks {', '.join(map(str, numbers_of_ranks or RANKS))}"
    report(results, f"{how}, {(perf_counter() - started) / len(results) * 1000:.0f} ms a run")


ANSWERS = (
    "right",
    "another too",
    "other pattern",
    "other span",
    "other rank",
    "other kind",
    "missed",
)
SAID = ("chronic", "drifting", "stalls", *MEMORY, "nothing")


def report(results: Sequence[tuple[str, float, Case]], how: str) -> None:
    """Print the outcome of each fault and size, a table of faults and findings, and the shares of
    the claim."""
    outcomes: dict[str, Counter[str]] = {}
    diagnosis: dict[str, Counter[str]] = {}
    for kind, size, run in results:
        diagnosis.setdefault(kind, Counter())[run.diagnosis] += 1
        if kind != CLEAN:
            outcomes.setdefault(f"{kind}, {size:.0%}", Counter())[run.answer] += 1
    rows = [(name, *(counts[answer] for answer in ANSWERS)) for name, counts in outcomes.items()]
    print_table(f"Faults found ({how})", ("fault", *ANSWERS), rows)
    rows = [(name, *(counts[word] for word in SAID)) for name, counts in diagnosis.items()]
    print_table("Faults, and their first finding", ("was", *SAID), rows)
    for name, kinds in (
        ("time", [kind for kind in SIZES if kind not in MEMORY]),
        ("memory", list(MEMORY)),
    ):
        large = [run for kind, size, run in results if kind in kinds and size > 0.1]
        if not large:
            continue
        right = sum(run.answer in ("right", "another too", "other pattern") for run in large)
        print(
            f"\nRank and span right in {right} of {len(large)} faults of {name} above 10 % ({right / len(large):.1%})."
        )
    small = [run for kind, size, run in results if kind != CLEAN and size <= 0.1]
    print(
        f"Another rank blamed, first or besides, in {sum(run.answer in ('other rank', 'another too') for run in small)}"
        f" of {len(small)} smaller faults."
    )
    clean = [run for kind, _, run in results if kind == CLEAN]
    alarms = [run for run in clean if run.blamed]
    print(f"Findings on {len(alarms)} of {len(clean)} clean runs ({len(alarms) / len(clean):.2%}).")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    if unknown := set(words) - set(SIZES):
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    main(*(int(word) for word in sys.argv[1:] if word.isdigit()), kinds=words)
