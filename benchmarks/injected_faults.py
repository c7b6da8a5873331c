"""Faults put into simulated runs of 2 to 64 ranks: which of them the tables' verdicts find, and what they call by mistake.

A run is simulated as a synchronous step works: a rank computes by itself up to its gradients, all wait in the backward
pass for the last, and what comes after the exchange delays the next one. Every rank has a speed of its own, noise that
resembles that of the iteration before, a jitter with a long tail and rare spikes of a Pareto tail, of up to an iteration;
loaders stop at every epoch's start, one rank logs now and then; memory settles, is reallocated, comes and goes. Each
fault and each clean run differs in ranks, times, size, rank and moment.

The claim: the rank and the span are right in 99 % of the faults of more than 10 % of an iteration, and at most 1 % of
the clean runs get a verdict on a rank or on memory.

    python -m benchmarks.injected_faults [seed] [cases of each fault and size]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.timing import print_table
from orchestrator.stats.insight import Verdict, diagnose

Floats = NDArray[np.float64]

RANKS = (2, 3, 4, 8, 16, 32, 64)
BEFORE = ("other_s", "data_wait_s", "to_device_s", "forward_s", "loss_s")
"""Spans before the exchange of gradients; `optimizer_s` and `hooks_s` come after it."""
SHARES = {
    "other_s": 0.02, "data_wait_s": 0.03, "to_device_s": 0.02, "forward_s": 0.3, "loss_s": 0.03, "own_backward_s": 0.5,
    "optimizer_s": 0.07, "hooks_s": 0.03,
}  # fmt: skip
"""Of an iteration in which nobody waits."""
COMPUTE = ("forward_s", "loss_s", "own_backward_s", "optimizer_s")
SIZES = {
    "slow data": (0.05, 0.12, 0.25, 0.5),
    "slow compute": (0.05, 0.12, 0.25, 0.5),
    "slow hook": (0.05, 0.12, 0.25, 0.5),
    "drift": (0.05, 0.12, 0.25, 0.5),
    "periodic stall": (0.3, 0.6, 2.0),
    "one-off stall": (2.0, 10.0, 40.0),
    "leak": (0.05, 0.12, 0.3),
    "memory imbalance": (0.3, 0.6, 1.2),
}
"""What each fault is given in: of an iteration, for compute of the rank's own work, for a drift at its end, for stalls
of one iteration each; of the memory that is held, for leaks over the run."""
SPAN = {"slow data": "data_wait_s", "slow compute": "forward_s", "slow hook": "hooks_s"}
STALLED = ("data_wait_s", "forward_s", "hooks_s")
PATTERN = {"drift": "drifting", "periodic stall": "periodic", "one-off stall": "one-off"}


@dataclass(frozen=True)
class Fault:
    """What is put into a run."""

    kind: str
    size: float
    rank: int
    span: str
    at: int = 0
    period: int = 0


def simulate(draw: np.random.Generator, ranks: int, iterations: int, fault: Fault | None) -> pd.DataFrame:
    """The stats table of a run of synchronous training."""
    step_s = float(10 ** draw.uniform(-2, 0))
    times = {span: step_s * (share * noise(draw, iterations, ranks)) for span, share in SHARES.items()}
    for seconds in times.values():
        seconds += step_s * spikes(draw, seconds.mean() / step_s, seconds.shape)
    epoch = int(draw.integers(40, 200))
    times["data_wait_s"][::epoch] += step_s * draw.lognormal(0, 0.3, (len(range(0, iterations, epoch)), 1)) * draw.uniform(0.9, 1.1, ranks)
    times["hooks_s"][:: int(draw.integers(10, 60)), 0] += 0.02 * step_s
    times["data_wait_s"][0] += step_s * draw.lognormal(1, 0.5, ranks)
    if fault is not None and fault.kind not in ("leak", "memory imbalance"):
        times = injected(times, fault, step_s)
    spans = lived_together(times, communication_s=0.05 * step_s)
    held = memory(draw, iterations, ranks, fault)
    return table(spans, held, -(-ranks // 8), epoch)


def noise(draw: np.random.Generator, iterations: int, ranks: int) -> Floats:
    """Factors about 1: each rank's speed, what the machine does to all, what stays for a while, and a jitter."""
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
    """In one of 500 rows: a span that takes more of an iteration, by a Pareto tail of exponent 2.5 up to a whole one."""
    return np.asarray((draw.random(shape) < 0.002) * np.minimum(share * draw.pareto(2.5, shape), 1.0), dtype=float)


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
    spans = {span: times[span] for span in (*BEFORE, "optimizer_s", "hooks_s")}
    spans["backward_s"], spans["step_s"] = np.zeros_like(before), np.zeros_like(before)
    ended = np.zeros(before.shape[1])
    for index in range(len(before)):
        began = ended + before[index]
        exchanged = (began + times["own_backward_s"][index]).max() + communication_s
        spans["backward_s"][index] = exchanged - began
        spans["step_s"][index] = exchanged + after[index] - ended
        ended = exchanged + after[index]
    return spans


def memory(draw: np.random.Generator, iterations: int, ranks: int, fault: Fault | None) -> Floats:
    """Resident bytes: what a process begins with, what it settles at, reallocations, and what comes and goes."""
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


def faults(draw: np.random.Generator, kind: str, size: float, ranks: int, iterations: int) -> Fault:
    span = SPAN.get(kind) or str(draw.choice(STALLED))
    period = int(draw.choice([5, 8, 10, 25]))
    at = int(draw.integers(0, period) if kind == "periodic stall" else draw.integers(10, iterations))
    return Fault(kind, size, int(draw.integers(ranks)), span, at, period)


def blamed(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    """The verdicts that blame a rank, or memory."""
    return [verdict for verdict in verdicts if verdict.kind in ("straggler", "memory")]


def judged(fault: Fault, verdicts: list[Verdict]) -> str:
    """What the weightiest verdict got right, and whether another rank is blamed beside the right one."""
    if not verdicts:
        return "missed"
    first = verdicts[0].numbers
    if first["rank"] != fault.rank:
        return "other rank"
    of_memory = fault.kind in ("leak", "memory imbalance")
    if (verdicts[0].kind == "memory") != of_memory or (of_memory and first["problem"] != fault.kind.split()[-1]):
        return "other kind"
    if not of_memory and first["span"] != fault.span:
        return "other span"
    if not of_memory and first["pattern"] != PATTERN.get(fault.kind, "chronic"):
        return "other pattern"
    ranks = {rank for verdict in verdicts for rank in verdict.numbers.get("ranks", [verdict.numbers["rank"]])}
    return "right" if ranks == {fault.rank} else "another too"


def runs(draw: np.random.Generator, count: int, longer: bool = False) -> Iterator[tuple[int, int]]:
    """Ranks and iterations of runs; memory is read at every tenth iteration, so that a leak takes longer to show."""
    for index in range(count):
        yield RANKS[index % len(RANKS)], int(draw.integers(600, 1200) if longer else draw.integers(200, 800))


def main(seed: int = 0, each: int = 14) -> None:
    draw, started = np.random.default_rng(seed), perf_counter()
    outcomes: dict[tuple[str, float], Counter[str]] = {}
    for kind, sizes in SIZES.items():
        for size in sizes:
            counts = outcomes.setdefault((kind, size), Counter())
            for ranks, iterations in runs(draw, each, longer=kind == "leak"):
                fault = faults(draw, kind, size, ranks, iterations)
                counts[judged(fault, blamed(diagnose(simulate(draw, ranks, iterations, fault)).verdicts))] += 1
    total = each * len(outcomes)
    alarms = Counter[str]()
    for ranks, iterations in runs(draw, total):
        found = blamed(diagnose(simulate(draw, ranks, iterations, None)).verdicts)
        for verdict in found[:1]:
            alarms[f"{verdict.kind} {verdict.numbers.get('pattern') or verdict.numbers.get('problem')}"] += 1
    seconds = (perf_counter() - started) / (2 * total)
    report(outcomes, alarms, total, f"seed {seed}, {seconds * 1000:.0f} ms a run")


def report(outcomes: dict[tuple[str, float], Counter[str]], alarms: Counter[str], clean: int, how: str) -> None:
    answers = ("right", "another too", "other pattern", "other span", "other rank", "other kind", "missed")
    rows = [(f"{kind}, {size:.0%}", *(counts[answer] for answer in answers)) for (kind, size), counts in outcomes.items()]
    print_table(f"Faults found ({how})", ("fault", *answers), rows)
    large = [counts for (_, size), counts in outcomes.items() if size > 0.1]
    right = sum(counts[answer] for counts in large for answer in answers[:3])
    cases = sum(sum(counts.values()) for counts in large)
    print(f"\nRank and span right in {right} of {cases} faults above 10 % ({right / cases:.1%}).")
    wrong = sum(alarms.values())
    print(f"Verdicts on {wrong} of {clean} clean runs ({wrong / clean:.2%}){': ' + str(dict(alarms)) if wrong else ''}.")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
