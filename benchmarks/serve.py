"""Time to open the live page: the list of 1,000 runs, and a run of a million rows.

The runs are made up, as in `benchmarks.all_runs`; the rows of the long run are compacted, as those of
a run that has ended are. The server is `hookyard serve` in a process of its own, asked over HTTP.
"First" is the first answer of a server, "again" the same page once more, and "unchanged" what an open
page asks for every second, which is answered without the page. With Chromium, the pages are also
opened in it, until the second painted frame.

    python -m benchmarks.serve [runs [rows [rounds]]]
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from urllib.parse import urlsplit

import psutil

from benchmarks.all_runs import change_run, write_runs
from benchmarks.tables import write
from benchmarks.timing import print_table
from orchestrator import list_runs
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.compaction import compact
from tests.browser import CHROMIUM, open_tab

PAINTED = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
    () => done(performance.now()))))"""
LIST = "/"
RUN = "/runs/long"
RANKS = 8
PAUSE_S = 2.0
"""Time after which the server reads the storage again."""


def write_long_run(storage: Path, rows: int) -> None:
    """Write a run of 8 ranks, whose rows are compacted."""
    folder = create_run(storage, "long", "hooks: {}\n")
    write(folder, RANKS, rows // RANKS, flush=4096)
    compact(folder.storage, folder.read_attempts())
    folder.run_file.end("finished")


@contextmanager
def serving(storage: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a storage, and yield the address and the process."""
    command = [sys.executable, "-m", "orchestrator", "serve", str(storage), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


class Client:
    """A browser without scripts, which has the token. `server` is the server's process."""

    def __init__(self, address: str, server: psutil.Process) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._connection = HTTPConnection(parts.hostname, parts.port or 80)
        self._server = server
        self._connection.request("GET", f"{parts.path}?{parts.query}")
        response = self._connection.getresponse()
        response.read()
        self._cookie = str(response.headers["set-cookie"]).partition(";")[0]
        self.size_bytes = 0
        """Size of the last page."""
        self.tag = ""
        """Tag of the last page."""

    def get(self, path: str, tag: str = "") -> tuple[float, float]:
        """Return the seconds until a page has come, and the server's seconds of processor time."""
        used = sum(self._server.cpu_times()[:2])
        began = perf_counter()
        headers = {"Cookie": self._cookie, "If-None-Match": tag}
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        self.size_bytes = len(response.read())
        seconds = perf_counter() - began
        assert response.status == (304 if tag else 200), response.status
        self.tag = str(response.headers["etag"])
        return seconds, sum(self._server.cpu_times()[:2]) - used


def make_line(what: str, times: Sequence[tuple[float, float]]) -> list[str]:
    seconds, processor_seconds = zip(*times, strict=True)
    shown = (median(seconds), max(seconds), median(processor_seconds))
    return [what, *(f"{time:.3f}" for time in shown)]


def ask(client: Client, path: str, rounds: int) -> list[list[str]]:
    """Return lines of the table: what the page costs at first, again, and unchanged."""
    first = client.get(path)
    name = f"{path}, {client.size_bytes / 1e6:.2f} MB"
    again = [client.get(path) for _ in range(rounds)]
    unchanged = [client.get(path, client.tag) for _ in range(rounds)]
    return [
        make_line(f"{name}: first", [first]),
        make_line(f"{name}: again", again),
        make_line(f"{name}: unchanged", unchanged),
    ]


def ask_after_changes(client: Client, storage: Path, rounds: int) -> list[str]:
    """Return a line of the table: the list after one of its runs has changed."""
    times = []
    for _ in range(rounds):
        change_run(storage)
        sleep(PAUSE_S)
        times.append(client.get(LIST))
    return make_line(f"{LIST} after a run has changed", times)


def open_in_browser(address: str, rounds: int) -> list[list[str]]:
    """Return lines of the table: the pages in Chromium, from the request to the second frame."""
    root = address.partition("/?")[0]
    lines = []
    with open_tab() as tab:
        tab.open(address)
        for path in (LIST, RUN):
            times = []
            for _ in range(rounds + 1):
                tab.open(root + path)
                times.append(tab.see(PAINTED) / 1000)
            times = times[1:]
            lines.append([f"{path} in Chromium", f"{median(times):.3f}", f"{max(times):.3f}", ""])
    return lines


def main(runs: int = 1000, rows: int = 1_000_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        storage = Path(temporary) / "runs"
        write_runs(storage, runs - 1)
        write_long_run(storage, rows)
        lines = []
        for index in ("without an index", "with an index"):
            with serving(storage) as (address, process):
                line = make_line(f"{LIST} {index}: first", [Client(address, process).get(LIST)])
            lines.append(line)
            list_runs(storage)  # writes the index

        with serving(storage) as (address, process):
            client = Client(address, process)
            lines += ask(client, LIST, rounds)
            lines.append(ask_after_changes(client, storage, rounds))
            lines += ask(client, RUN, rounds)
            if CHROMIUM:
                lines += open_in_browser(address, rounds)
    columns = ["what", "s, median", "s, worst", "s of processor, median"]
    print_table(f"{runs:,} runs, one of {rows:,} rows", columns, lines)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
