"""Time to open the live page: the list of 1,000 runs, and a run of a million rows.

The runs are made up, as in `benchmarks.all_runs`; the rows of the long run are compacted, as those of
a run that has ended are. The server is `hookyard serve` in a process of its own, asked over HTTP.
"First" is the first answer of a server that has just started, without an index in the storage;
"changed" comes after one of the runs has changed, and "unchanged" is what an open page asks for
every second. With Chromium, the pages are also opened in it, until the second painted frame.

    python -m benchmarks.serve [runs [rows [rounds]]]
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from benchmarks.all_runs import change_run, write_runs
from benchmarks.tables import write
from benchmarks.timing import print_table
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.compaction import compact
from tests.browser import CHROMIUM, open_tab

PAINTED = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
    () => done(performance.now()))))"""
LIST = "/"
RUN = "/runs/long"
RANKS = 8


def write_long_run(storage: Path, rows: int) -> None:
    """Write a run of 8 ranks, whose rows are compacted."""
    folder = create_run(storage, "long", "hooks: {}\n")
    write(folder, RANKS, rows // RANKS, flush=4096)
    compact(folder.storage, folder.read_attempts())
    folder.end("finished")


@contextmanager
def serving(storage: Path) -> Iterator[str]:
    """Serve a storage, and yield the address."""
    command = [sys.executable, "-m", "orchestrator", "serve", str(storage), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Client:
    """A browser without scripts, which has the token."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._connection = HTTPConnection(parts.hostname, parts.port or 80)
        self._headers: dict[str, str] = {}
        self._connection.request("GET", f"{parts.path}?{parts.query}")
        response = self._connection.getresponse()
        response.read()
        self._headers["Cookie"] = str(response.headers["set-cookie"]).partition(";")[0]

    def get(self, path: str, tag: str = "") -> tuple[float, int, str]:
        """Return the seconds until a page has come, its bytes, and its tag."""
        began = perf_counter()
        self._connection.request("GET", path, headers={**self._headers, "If-None-Match": tag})
        response = self._connection.getresponse()
        body = response.read()
        seconds = perf_counter() - began
        assert response.status == (304 if tag else 200), body
        return seconds, len(body), str(response.headers["etag"])


def ask(client: Client, path: str, rounds: int) -> list[list[str]]:
    """Return lines of the table: what the page costs at first, and unchanged."""
    first_s, size, tag = client.get(path)
    unchanged = [client.get(path, tag)[0] for _ in range(rounds)]
    again = [client.get(path)[0] for _ in range(rounds)]
    return [
        [f"{path} first, {size / 1e6:.2f} MB", f"{first_s:.2f}", ""],
        [f"{path} again", f"{median(again):.3f}", f"{max(again):.3f}"],
        [f"{path} unchanged", f"{median(unchanged):.3f}", f"{max(unchanged):.3f}"],
    ]


def ask_after_changes(client: Client, storage: Path, rounds: int) -> list[str]:
    """Return a line of the table: the list after one of its runs has changed."""
    times = []
    for _ in range(rounds):
        change_run(storage)
        sleep_until_stale(client)
        times.append(client.get(LIST)[0])
    return [f"{LIST} after a change", f"{median(times):.3f}", f"{max(times):.3f}"]


def sleep_until_stale(client: Client) -> None:
    """Wait until the server reads the storage again, which it does at most once a second."""
    from time import sleep

    sleep(1.5)


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
            lines.append([f"{path} in Chromium", f"{median(times):.2f}", f"{max(times):.2f}"])
    return lines


def main(runs: int = 1000, rows: int = 1_000_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        storage = Path(temporary) / "runs"
        write_runs(storage, runs - 1)
        write_long_run(storage, rows)
        began = perf_counter()
        with serving(storage) as address:
            started_s = perf_counter() - began
            client = Client(address)
            lines = [["until the address is printed", f"{started_s:.2f}", ""]]
            lines += ask(client, LIST, rounds)
            lines.append(ask_after_changes(client, storage, rounds))
            lines += ask(client, RUN, rounds)
            if CHROMIUM:
                lines += open_in_browser(address, rounds)
    print_table(f"{runs:,} runs, one of {rows:,} rows", ["what", "s, median", "s, worst"], lines)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
