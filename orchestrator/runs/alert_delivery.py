"""The delivery of alerts to an HTTP server or a command, in a thread. Used in the driver."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPException
from queue import SimpleQueue
from threading import Thread
from time import sleep
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from orchestrator.experiment.sections.notify import Event, Notify
from orchestrator.process.streams import print_line

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt to reach a server."""
REQUEST_S = 10.0
COMMAND_S = 60.0
END_S = 30.0
"""Longest time that the end of a run waits for alerts that are not sent yet."""
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True)
class Alert:
    """An alert. Its fields are those of the JSON that a server or a command gets."""

    event: Event
    name: str
    """Name of the run or sweep."""
    path: str
    message: str
    time: str


class AlertDelivery:
    """Thread that sends alerts to the server and the command of some settings.

    A slow server delays nothing but the end, and that by at most END_S. Errors are printed and
    never raised; the text names the server, but not the rest of its URL, which may be a secret.
    """

    def __init__(self, settings: Notify) -> None:
        self._recipients: list[Callable[[Alert], None]] = []
        if settings.command:
            self._recipients.append(partial(_run_command, settings.command))
        url = settings.read_url()
        if url:
            self._recipients.append(partial(_post, url, settings.format))
        self._queue: SimpleQueue[Alert | None] = SimpleQueue()
        """Alerts to send; None ends the thread."""
        self._thread = Thread(target=self._deliver_all, name="alerts", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Send an alert after those before it."""
        self._queue.put(alert)

    def finish(self) -> None:
        """Wait until all alerts are sent, at most END_S."""
        self._queue.put(None)
        self._thread.join(END_S)
        if self._thread.is_alive():
            print_line(f"notify: gave up after {END_S:g} s, and the last alerts were not sent")

    def _deliver_all(self) -> None:
        while True:
            alert = self._queue.get()
            if alert is None:
                return
            for send in self._recipients:
                _deliver(send, alert)


def _deliver(send: Callable[[Alert], None], alert: Alert) -> None:
    """Send an alert to one recipient, and print why that failed."""
    try:
        send(alert)
    # An alert must never fail the run that it is about.
    except Exception as error:
        print_line(f"notify: could not send that {alert.message!r:.200}: {error}")


# To a server


class _Unavailable(OSError):
    """The server does not answer or is busy, so that a later attempt may succeed."""


def _post(url: str, form: str, alert: Alert) -> None:
    """Send a POST, again if the server does not answer or is busy; raises OSError."""
    request = _make_request(url, form, alert)
    for delay_s in RETRY_DELAYS_S:
        try:
            _try_post(request)
        except _Unavailable:
            sleep(delay_s)
        else:
            return
    _try_post(request)


def _make_request(url: str, form: str, alert: Alert) -> Request:
    if form == "ntfy":
        return Request(url, alert.message.encode(), {"Title": f"Hookyard: {alert.event}"})
    fields = {"text": alert.message} if form == "slack" else asdict(alert)
    return Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})


def _try_post(request: Request) -> None:
    host = urlsplit(request.full_url).hostname
    try:
        with urlopen(request, timeout=REQUEST_S):
            return
    except HTTPError as error:
        is_final = error.code < 500 and error.code != _TOO_MANY_REQUESTS
        kind = OSError if is_final else _Unavailable
        raise kind(f"{host}: it answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise _Unavailable(f"{host}: {reason}") from None


# To a command


def _run_command(command: str, alert: Alert) -> None:
    """Run a command with an alert; raises OSError if it fails."""
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(asdict(alert)),
            env={**os.environ, "HOOKYARD_MESSAGE": alert.message},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"the command did not end within {COMMAND_S:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise OSError(f"the command ended with {done.returncode}: {lines[-1]}")
