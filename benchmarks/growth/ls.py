"""`hookyard ls` of a storage on S3, by the number of runs in it: requests, and seconds of requests
of 30 ms."""

import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from time import perf_counter

from benchmarks.growth._slow_s3 import DELAY_S, slow_s3
from benchmarks.growth.law import print_growth
from orchestrator.cli.ls import ls
from orchestrator.disk.new_run import create_run
from orchestrator.storage.remote_filesystem import CONNECTIONS


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (200, 600, 2000)
    costs: dict[str, list[float]] = {
        "requests": [],
        "s of 30 ms, 32 at once": [],
        "s here, with moto's own work": [],
    }
    for runs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(runs):
                create_run(f"{folder}/runs", f"run-{number:05d}", "name: points\n").run_file.end(
                    "finished"
                )
            with slow_s3(Path(folder)) as requests:
                requests()
                began = perf_counter()
                with redirect_stdout(StringIO()):
                    ls(None, "s3://bucket/runs", None, None, as_json=True)
                costs["s here, with moto's own work"].append(perf_counter() - began)
                costs["requests"].append(float(requests()))
                costs["s of 30 ms, 32 at once"].append(
                    costs["requests"][-1] * DELAY_S / CONNECTIONS
                )
    print_growth("ls on S3", "runs", sizes, costs)
