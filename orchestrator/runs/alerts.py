"""Alerts about a run or a sweep, to an HTTP server or a command. Used in the driver."""

import json
import math
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from numbers import Real
from queue import SimpleQueue
from threading import Thread
from time import sleep
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from orchestrator import units
from orchestrator.disk.metadata import COMPLETE, RunMetadata, format_now
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import list_trial_folders
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.notify import Event, Notify
from orchestrator.process.streams import print_line

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt to reach a server."""
REQUEST_S = 10.0
COMMAND_S = 60.0
END_S = 30.0
"""Longest time that the end of a run waits for alerts that are not sent yet."""
_TOO_MANY_REQUESTS = 429


class Alerts:
    """Sender of the alerts about one run or sweep: `with Alerts(experiment.notify, folder):`.

    A thread sends them, so that a slow server delays nothing but the end, and that by at most
    END_S. Without settings, nothing is sent. Errors are printed and never raised; the text names
    the server, but not the rest of its URL, which may be a secret.
    """

    def __init__(self, settings: Notify | None, folder: RunFolder) -> None:
        self._settings = settings
        self._folder = folder
        self._url = settings.read_url() if settings else None
        self._sent_events: set[Event] = set()
        self._queue: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._deliver_all, name="alerts", daemon=True)

    def __enter__(self) -> Self:
        if self._settings:
            self._thread.start()
            self.send("started", "has started")
            if self._has_reached_before(self._settings):
                self._sent_events.add("target")
        return self

    def _has_reached_before(self, settings: Notify) -> bool:
        """Return whether a report before a resume has reached the target and sent its alert."""
        if settings.target is None:
            return False
        with suppress(HookyardError, OSError):  # other readers report the damage
            for folder in (self._folder, *list_trial_folders(self._folder)):
                if any(map(settings.has_reached_target, folder.read_current_reports())):
                    return True
        return False

    def __exit__(self, *error: object) -> None:
        if not self._settings:
            return
        with suppress(HookyardError, OSError):  # the run's own error is raised
            self._send_end(self._folder.read_metadata())
        self._queue.put(None)
        self._thread.join(END_S)
        if self._thread.is_alive():
            print_line(f"notify: gave up after {END_S:g} s, and the last alerts were not sent")

    def send(self, event: Event, text: str) -> None:
        """Send an alert with the run's name and a text, if its event is wanted."""
        if self._settings is None or event not in self._settings.events:
            return
        self._queue.put(
            {
                "event": event,
                "name": self._folder.name,
                "path": str(self._folder),
                "message": f"{self._folder.name} {text}",
                "time": format_now(),
            }
        )

    def send_once(self, event: Event, text: str) -> None:
        """Send an alert, unless one for this event was sent before."""
        if event not in self._sent_events:
            self._sent_events.add(event)
            self.send(event, text)

    def check_report(self, metrics: Mapping[str, Any], trial: str = "") -> None:
        """Send an alert for the first report whose loss is not finite, and for the first of the run
        that reaches the target."""
        if self._settings is None:
            return
        prefix = f"({trial}) " if trial else ""
        place = f"in epoch {units.number_epoch(metrics['epoch'])}, step {metrics['step']}"
        for name, value in metrics.items():
            if _is_loss(name) and isinstance(value, Real) and not math.isfinite(value):
                self.send_once("nan", f"{prefix}has {name} {value} {place}")
        if self._settings.has_reached_target(metrics):
            self.send_once("target", f"{prefix}has reached {self._settings.target} {place}")

    def send_hang(self, name: str, text: str) -> None:
        """Send an alert that a rank of this run, or of a trial of this sweep, hangs."""
        prefix = "" if name == self._folder.name else f"({name}) "
        self.send("hang", f"{prefix}hangs: {text}")

    def _send_end(self, metadata: RunMetadata) -> None:
        if metadata.status == "failed":
            self.send("failed", f"has failed: {metadata.error}")
            return
        best = ""
        if metadata.best:
            metric = metadata.best["metric"]
            value = units.format_value(metric, metadata.best["value"])
            trial = metadata.best.get("trial")
            best = f": best {metric} {value}{f' ({trial})' if trial else ''}"
        if metadata.status in COMPLETE:
            self.send("finished", f"has {metadata.status}{best}")
        elif metadata.status == "interrupted":
            self.send("interrupted", f"was interrupted{best}")

    def _deliver_all(self) -> None:
        while alert := self._queue.get():
            try:
                self._deliver(alert)
            # An alert must never fail the run that it is about.
            except Exception as error:
                print_line(f"notify: could not send that {alert['message']!r:.200}: {error}")

    def _deliver(self, alert: Mapping[str, Any]) -> None:
        assert self._settings is not None
        if self._settings.command:
            _run_command(self._settings.command, alert)
        if self._url:
            _post(self._url, *_make_body(alert, self._settings.format))


def _is_loss(metric: str) -> bool:
    """Return whether a metric is a loss, such as `train/loss`, `val/bce_loss`, or `train/loss_d` of
    one of several optimizers."""
    name = metric.rpartition("/")[2]
    return name.endswith("loss") or name.startswith("loss_")


def _make_body(alert: Mapping[str, Any], form: str) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of a POST."""
    if form == "ntfy":
        return alert["message"].encode(), {"Title": f"Hookyard: {alert['event']}"}
    fields = {"text": alert["message"]} if form == "slack" else alert
    return json.dumps(fields).encode(), {"Content-Type": "application/json"}


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a POST, again if the server does not answer or is busy; raises OSError."""
    request = Request(url, body, dict(headers))
    for delay in (*RETRY_DELAYS_S, None):
        try:
            with urlopen(request, timeout=REQUEST_S):
                return
        except HTTPError as error:
            reason = f"it answered {error.code} {error.reason}"
            is_final = error.code < 500 and error.code != _TOO_MANY_REQUESTS
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            is_final = False
        if is_final or delay is None:
            raise OSError(f"{urlsplit(url).hostname}: {reason}")
        sleep(delay)


def _run_command(command: str, alert: Mapping[str, Any]) -> None:
    """Run a command with an alert; raises OSError if it fails."""
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(alert),
            env={**os.environ, "HOOKYARD_MESSAGE": alert["message"]},
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
