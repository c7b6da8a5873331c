"""Random runs on an S3 server behind a proxy that fails now and then; each must equal a loop
written by hand."""

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.accidents import cases, processes, runs
from benchmarks.accidents.cases import Case
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, FAILED, INTERRUPTED, KILLED, MISUSED
from orchestrator import UsageError, open_run, resume, run
from orchestrator.storage import remote_requests

BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ACCIDENTS = ("kill", "kill", "interrupt", "terminate", "clock", "memory")
FAULTS = ("error", "slow down", "reset", "late reset", "time-out")
FAULTY = 0.04
"""Share of the requests that fail."""
OUTAGES, OUTAGE = 0.003, 30
"""Share of the requests that begin an outage, and how many fail then."""
TIMEOUT_S = 4.0
"""Seconds of a time-out, more than the client's three."""
RETRIES = (4, 10)
"""How often a request is repeated, which takes less or more time than an outage."""
UNREACHABLE = ("did not answer", "cannot be reached")


def draw(seed: int) -> Case:
    """Draw the run of a seed."""
    chance = random.Random(f"store {seed}")
    case = cases.draw(seed)
    places = [
        f"{chance.choice(ACCIDENTS)} {case.draw_moment(chance)}" for _ in range(chance.randrange(3))
    ]
    return replace(case, places=places, damages=[])


def check(seed: int, root: Path, url: str) -> Outcome:
    """Check the run of a seed on the server at a URL."""
    outcome, folder = Outcome(draw(seed)), root / f"store-{seed}"
    urlopen(f"{url}/-/faults/{seed}").read()
    retries = RETRIES[seed % 2]
    for _ in range(20):
        code, log = processes.run(_run, folder, outcome.case, folder, seed, url, retries)
        outcome.exit_codes.append(code)
        is_silence = code in (FAILED, MISUSED) and any(words in log for words in UNREACHABLE)
        is_memory = code == FAILED and "memory" in log
        if code not in (INTERRUPTED, KILLED) and not is_silence and not is_memory:
            break
    outcome.accidents = [*processes.accidents(folder), *_end_faults(url)]
    if code != DONE:
        outcome.problem = f"exit code {code}\n{log[-2000:]}"
    else:
        os.environ |= _environment(url)
        expected = runs.expect(outcome.case, root / f"store-{seed}-calm")
        outcome.problem = runs.compare(runs.results(open_run(_location(seed))), expected)
    return outcome


def _end_faults(url: str) -> list[str]:
    """End the faults, and return those that happened."""
    text: str = urlopen(f"{url}/-/end").read().decode()
    return text.split(",") if text else []


def _location(seed: int) -> str:
    return f"s3://{BUCKET}/{seed}/case"


def _environment(url: str) -> dict[str, str]:
    return {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}


def _run(case: Case, folder: Path, seed: int, url: str, retries: int) -> str:
    """Begin or resume the run, and return its status."""
    os.environ |= _environment(url)
    remote_requests.S3_RETRIES = retries
    try:
        return resume(_location(seed)).status
    except UsageError as error:
        if "is not a run" not in str(error):
            raise
    storage = _location(seed).removesuffix("/case")
    return run(case.experiment(folder / "marks", folder), storage=storage, local=True).status


@contextmanager
def faulty_s3() -> Iterator[str]:
    """Start the server, and yield its URL."""
    processes = get_context("spawn")
    port = processes.Value("i", 0)
    server = processes.Process(target=_serve, args=(port,), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port.value}"
    finally:
        server.terminate()
        server.join()


def _serve(port: Any) -> None:
    from moto.s3.models import s3_backends
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    s3_backends["123456789012"]["global"].create_bucket(BUCKET, "us-east-1")

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *arguments: Any) -> None:
            """Nothing."""

    proxy = _Proxy(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, proxy, threaded=True, request_handler=Silent)
    port.value = server.port
    server.serve_forever()


class _Proxy:
    """Passes requests on, except for the faults that a seed draws."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._chance: random.Random | None = None
        self._happened: list[str] = []
        self._left = 0
        """Requests of an outage to come."""

    def __call__(self, environment: Any, start: Any) -> Any:
        if environment["PATH_INFO"].startswith("/-/"):
            return self._control(environment["PATH_INFO"].split("/")[2:], start)
        fault = self._draw()
        if fault == "time-out":
            time.sleep(TIMEOUT_S)
        if fault in ("error", "slow down", "outage"):
            start(
                {"slow down": "503 Slow Down"}.get(fault, "500 Internal Server Error"),
                [("Content-Length", "0")],
            )
            return [b""]
        answer = None if fault == "reset" else self._application(environment, start)
        if fault in ("reset", "late reset"):
            environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        return answer

    def _control(self, words: list[str], start: Any) -> Any:
        """Begin the faults of a seed, or end them and answer which happened."""
        answer = ",".join(self._happened).encode()
        self._chance, self._happened, self._left = None, [], 0
        if words[0] == "faults":
            self._chance = random.Random(words[1])
        start("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]

    def _draw(self) -> str:
        if self._chance is None:
            return ""
        if self._left:
            self._left -= 1
            return "outage"
        drawn = self._chance.random()
        fault = self._chance.choice(FAULTS) if drawn < FAULTY else ""
        if drawn > 1 - OUTAGES:
            fault, self._left = "outage", OUTAGE
        self._happened += [fault] if fault else []
        return fault
