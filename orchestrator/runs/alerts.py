"""Alerts about a run or a sweep: when there is one, and what it says. Used in the driver."""

import math
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from typing import Any, Self

from orchestrator import units
from orchestrator.disk.best import BestTrial
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.disk.sweep_folder import list_trial_folders
from orchestrator.disk.timestamps import format_now
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.notify import Event, Notify
from orchestrator.runs.alert_delivery import Alert, AlertDelivery


class Alerts:
    """Sender of the alerts about one run or sweep: `with Alerts(experiment.notify, folder):`.

    Without settings, nothing is sent. An alert that cannot be sent is printed, and raises nothing.
    """

    def __init__(self, settings: Notify | None, folder: RunFolder) -> None:
        self._settings = settings
        self._folder = folder
        self._sent_events: set[Event] = set()
        self._delivery: AlertDelivery | None = None
        if settings:
            self._delivery = AlertDelivery(settings)

    def __enter__(self) -> Self:
        if self._delivery:
            self._delivery.start()
            self.send("started", "has started")
            if self._has_reached_before():
                self._sent_events.add("target")
        return self

    def _has_reached_before(self) -> bool:
        """Return whether a report before a resume has reached the target and sent its alert."""
        settings = self._settings
        if settings is None or settings.target is None:
            return False
        with suppress(HookyardError, OSError):  # other readers report the damage
            for folder in (self._folder, *list_trial_folders(self._folder)):
                if any(map(settings.has_reached_target, folder.read_current_reports())):
                    return True
        return False

    def __exit__(self, *error: object) -> None:
        if self._delivery is None:
            return
        with suppress(HookyardError, OSError):  # the run's own error is raised
            self._send_end(self._folder.read_metadata())
        self._delivery.finish()

    def send(self, event: Event, text: str) -> None:
        """Send an alert with the run's name and a text, if its event is wanted."""
        if self._delivery is None or self._settings is None or event not in self._settings.events:
            return
        name = self._folder.name
        alert = Alert(event, name, str(self._folder), f"{name} {text}", format_now())
        self._delivery.put(alert)

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
        elif metadata.status in COMPLETE:
            self.send("finished", f"has {metadata.status}{_describe_best(metadata)}")
        elif metadata.status == "interrupted":
            self.send("interrupted", f"was interrupted{_describe_best(metadata)}")


def _describe_best(metadata: RunMetadata) -> str:
    """Return the best value, to end a message; empty if there is none."""
    best = metadata.best
    if best is None:
        return ""
    text = f": best {best.metric} {units.format_value(best.metric, best.value)}"
    return f"{text} ({best.trial})" if isinstance(best, BestTrial) else text


def _is_loss(metric: str) -> bool:
    """Return whether a metric is a loss, such as `train/loss`, `val/bce_loss`, or `train/loss_d` of
    one of several optimizers."""
    name = metric.rpartition("/")[2]
    return name.endswith("loss") or name.startswith("loss_")
