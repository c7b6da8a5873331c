"""Train random experiments through random accidents; each must equal its reference, bit for bit.

    python -m benchmarks.accidents {runs,sweeps,gangs,trials,stores} [--cases 1000] [--seed 0]
        [--minutes 5]

`runs`: a case draws a program, data, an optimizer, a scheduler and settings. Up to three times, an
accident meets its process: a signal, a disk that fills or vanishes, a clock that is set back,
memory that runs out. Then a file of the run may be damaged, or the disk be read-only for a while.
Each time the run is resumed. In the end all losses, rates, metrics, weights, the best checkpoint
and the optimizer's state are compared with a loop written by hand, or for custom loops and several
optimizers with the run without accidents. Each row must exist once, and nothing be left behind.
Accidents of the disk need the right to mount one; they are kills without it.

`sweeps`: a case also draws a space, repeats and a scheduler. It is compared with the same sweep
without an accident.

`gangs`: a case trains on one to three ranks of a Ray cluster, with DDP or FSDP, a gang or Ray
Train. Ranks, nodes, the head and drivers are killed, stopped and interrupted. It is compared with
the same run without an accident.

`trials`: sweeps on such a cluster.

`stores`: runs on an S3 server behind a proxy, which answers with errors, too late, or not at all.
Needs moto.
"""

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.accidents import gangs, processes, runs, stores, sweeps
from benchmarks.accidents.nodes import ray_cluster
from benchmarks.accidents.stores import faulty_s3

CHECKS: dict[str, Any] = {
    "runs": runs.check,
    "sweeps": sweeps.check,
    "gangs": gangs.check,
    "trials": sweeps.check,
    "stores": stores.check,
}
SURROUNDINGS = {"gangs": ray_cluster, "trials": ray_cluster, "stores": faulty_s3}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=CHECKS)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=inf, help="begin no case after these")
    arguments = parser.parse_args()
    processes.preload()
    codes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    checked, failed, until = 0, 0, monotonic() + 60 * arguments.minutes
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        needed = (
            [stack.enter_context(SURROUNDINGS[arguments.kind]())]
            if arguments.kind in SURROUNDINGS
            else []
        )
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            if monotonic() > until:
                break
            checked += 1
            outcome = CHECKS[arguments.kind](seed, Path(root), *needed)
            codes.update(map(str, outcome.exit_codes))
            happened.update(outcome.accidents)
            if outcome.problem:
                failed += 1
                print(
                    f"case {seed}: exit codes {outcome.exit_codes}\n  {outcome.case}\n  {outcome.problem}",
                    flush=True,
                )
    print(f"{checked - failed} of {checked} cases equal the reference")
    print(f"accidents: {dict(happened.most_common())}")
    print(f"exit codes of all attempts: {dict(codes)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
