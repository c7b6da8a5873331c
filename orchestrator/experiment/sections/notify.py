"""Alerts about a run or a sweep: which events, and where they go."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.experiment.fields.field_errors import make_value_error
from orchestrator.experiment.fields.section import Model

Event = Literal["started", "finished", "interrupted", "failed", "hang", "nan", "target"]
_DEFAULT: Sequence[Event] = ("finished", "interrupted", "failed", "hang", "nan", "target")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def _check_url(url: str) -> str:
    if _VARIABLE.fullmatch(url):
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            "must begin with http:// or https://, or name an environment variable, such as $ALERT_URL"
        )
    if parts.password:
        raise ValueError(
            "contains a password, which would be stored with the run; export the URL as an"
            " environment variable, and write its name, such as $ALERT_URL"
        )
    return url


def _check_target(text: str) -> str:
    parse_target(text)
    return text


def parse_target(text: str) -> tuple[str, Comparison]:
    """Return the metric and the comparison of a target; raises ValueError."""
    metric, _, comparison = text.strip().partition(" ")
    if not comparison:
        raise ValueError("must be a metric, >= or <=, and a number, such as 'val/accuracy >= 0.9'")
    return metric, Comparison.parse_for(metric, comparison)


class Notify(Model):
    """Alerts that the driver sends about a run or a sweep.

    An alert that cannot be sent is tried again for some seconds, then a line says so. It never
    fails a run.
    """

    events: Annotated[list[Event], Field(min_length=1)] = Field(default_factory=lambda: [*_DEFAULT])
    """Events that send an alert: the run `started`, `finished`, was `interrupted` or `failed`; a
    rank hangs; a report has a loss that is `nan` or infinite; the `target` is reached. A sweep sends
    one alert for the first trial that fails, has such a loss or reaches the target. By default all
    events but `started`."""
    target: Annotated[str, AfterValidator(_check_target)] | None = None
    """Metric and value that a report reaches, such as `val/accuracy >= 0.9`."""
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    """Address that gets an HTTP POST. If it is a secret, as Slack's are, write `$NAME`: the driver
    reads that environment variable, and its value is never stored."""
    format: Literal["json", "slack", "ntfy"] = "json"
    """Body of the POST: all fields as `json`, or the text as `slack` (`{"text": ...}`, which
    Mattermost takes too) or `ntfy` expects it."""
    command: Annotated[str, Field(min_length=1)] | None = None
    """Shell command that gets all fields as JSON on its standard input, and the text as the
    environment variable HOOKYARD_MESSAGE."""

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if self.url is None and self.command is None:
            raise make_value_error("", "sets neither url nor command; set where the alerts go")
        if self.url is None and "format" in self.model_fields_set:
            raise make_value_error("format", "has no effect without url; remove it, or set url")
        return self

    def read_url(self) -> str | None:
        """Return the URL, from the environment if it names a variable; raises ConfigError if that
        is not set or not a URL."""
        match = _VARIABLE.fullmatch(self.url or "")
        if match is None:
            return self.url
        name = match[1] or match[2]
        value = os.environ.get(name)
        if not value:
            raise ConfigError.at("notify.url", f"{name} is not set; export it with the URL")
        if urlsplit(value).scheme not in ("http", "https"):
            raise ConfigError.at("notify.url", f"{name} does not begin with http:// or https://")
        return value

    def has_reached_target(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether a report's metrics fulfil `target`."""
        if self.target is None:
            return False
        metric, comparison = parse_target(self.target)
        return comparison.holds(metrics.get(metric))
