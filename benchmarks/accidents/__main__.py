"""Train random experiments through random accidents; each must equal its reference, bit for bit.

    python -m benchmarks.accidents {runs,sweeps,gangs} [--cases 1000] [--seed 0]

`runs`: a case draws a model, data, an optimizer, a scheduler and settings. Up to three times, its process is killed or
interrupted, or its disk fills up. Then a file of its newest checkpoint may be damaged, or the disk be read-only for a
while. Each time the run is resumed. In the end all losses, rates, metrics, weights and the optimizer's state are
compared with a loop written by hand, and each row must exist once. Accidents of the disk need the right to mount one;
they are kills without it.

`sweeps`: a case also draws a space, repeats and a scheduler. It is compared with the same sweep without an accident.

`gangs`: a case trains on two ranks of a Ray cluster, with DDP or FSDP, a gang or Ray Train. Ranks and drivers are
killed and interrupted. It is compared with the same run without an accident.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.accidents import gangs, runs, sweeps

CHECKS: dict[str, Any] = {"runs": runs.check, "sweeps": sweeps.check, "gangs": gangs.check}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=CHECKS)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    accidents: Counter[str] = Counter()
    failed = 0
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = [stack.enter_context(gangs.cluster())] if arguments.kind == "gangs" else []
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            outcome = CHECKS[arguments.kind](seed, Path(root), *cluster)
            accidents.update(str(code) for code in outcome.exit_codes)
            if outcome.problem:
                failed += 1
                print(
                    f"case {seed}: exit codes {outcome.exit_codes}\n  {outcome.case}\n  {outcome.problem}", flush=True
                )
    print(f"{arguments.cases - failed} of {arguments.cases} cases equal the reference")
    print(f"exit codes of all attempts: {dict(accidents)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
