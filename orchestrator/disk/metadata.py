"""The metadata of a run: the content of `run.json`.

Imports neither ray, torch nor pandas, so that `ls` and `show` are quick.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, get_args

from annotated_types import Gt, Lt

from hooks.metrics.direction import Mode
from orchestrator.disk.process import Process
from orchestrator.experiment.yaml.origins import InitialWeights, ParentCheckpoint
from orchestrator.storage.validation import validate

EngineName = Literal["train", "gang", "in-process"]
"""Engine of a run; a sweep uses one of the first two."""
IfExists = Literal["error", "number", "replace"]
"""What a new run does if its name is taken: it is refused, takes a numbered name, or replaces the
other run."""
Status = Literal["running", "finished", "stopped", "interrupted", "failed"]
STATUSES = (*get_args(Status), "lost")
COMPLETE = ("finished", "stopped")
"""Statuses after which there is nothing to resume."""


def format_now() -> str:
    """Return the current UTC time, to the millisecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def seconds_at(moment: str) -> float:
    """Convert an ISO time to Unix time; raises ValueError."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{moment!r} is not a time") from None


@dataclass(frozen=True)
class SweepMetadata:
    """Metrics and number of trials of a sweep."""

    objectives: Sequence[tuple[str, Mode]]
    """Each metric with its mode."""
    trials: int
    repeats: int = 1
    """Trials of each configuration."""
    repeated_path: str = "seed"
    """Path in which they differ."""
    repeated_values: Sequence[Any] = ()
    """Its values; empty for consecutive seeds."""
    aggregate: str = "mean"
    """Aggregation of repeats."""
    constraints: Mapping[str, str] = field(default_factory=dict)
    """Limits of a feasible trial, by column."""


@dataclass(frozen=True)
class ExploitedCheckpoint:
    """The checkpoint of another trial that a trial continues from, and its number of attempts
    before that."""

    checkpoint: str
    attempts: int


@dataclass(frozen=True)
class Evaluated(ParentCheckpoint):
    """The checkpoint and the phase of an evaluation or a prediction."""

    phase: str
    data: str = ""
    """Data that replaced the phase's: a `module:function`, or a description of the data."""
    verb: Literal["evaluate", "predict"] = "evaluate"
    """The command that did it."""

    def __str__(self) -> str:
        return f"{super().__str__()}, on {self.data or self.phase}"

    @property
    def noun(self) -> str:
        return "prediction" if self.verb == "predict" else "evaluation"

    @property
    def noun_with_article(self) -> str:
        return "a prediction" if self.verb == "predict" else "an evaluation"

    @property
    def participle(self) -> str:
        return "used to predict" if self.verb == "predict" else "evaluated"

    def format_command(self, run: object) -> str:
        """Return what does it again with a checkpoint of a run: a command, or Python for a dataset
        that no command can name."""
        if self.data and ":" not in self.data:
            return f"open_run({str(run)!r}).predict(DATA, {self.checkpoint!r}, {self.phase!r})"
        checkpoint = shlex.quote(f"{run}@{self.checkpoint}")
        command = f"hookyard {self.verb} {checkpoint} --phase {self.phase}"
        return f"{command} --data {shlex.quote(self.data)}" if self.data else command


@dataclass(frozen=True)
class _BestReport:
    """Entries of `best` that are validated."""

    metric: str
    value: float
    checkpoint: str | None
    trial: str | None = None


@dataclass(frozen=True)
class RunMetadata:
    """Content of `run.json` of a run, a sweep or a trial. Unknown entries are None or empty."""

    name: str
    status: Status
    """Last recorded status."""
    started: str
    pid: Annotated[int, Gt(0), Lt(2**31)] | None = None
    """Process of the driver, as in `Process`."""
    host: str | None = None
    boot: str | None = None
    process_started: str | None = None
    engine: EngineName | None = None
    local: bool = False
    seed: int | None = None
    ended: str | None = None
    resumed: Sequence[str] = ()
    """Times at which it was resumed."""
    earlier_s: float = 0.0
    """Seconds that it ran before it was last resumed."""
    attempts: int | None = None
    ranks: int | None = None
    """Number of ranks of the last attempt."""
    reports: int | None = None
    """Number of lines of metrics.jsonl at the end of the run."""
    hosts: Sequence[str] = ()
    """Hosts of the last attempt."""
    stopped: Sequence[str] = ()
    """Reasons for an early end."""
    error: str | None = None
    is_user_error: bool = False
    """True if the failure would repeat, such as an error in the experiment."""
    metric_missing: bool = False
    """True if it failed because its reports lack the sweep's metric."""
    continued_from: ParentCheckpoint | None = None
    init: InitialWeights | None = None
    evaluates: Evaluated | None = None
    tags: Sequence[str] = ()
    notes: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Information from hooks."""
    best: Mapping[str, Any] | None = None
    """Best report, as `Best` in `runs/best.py`; a sweep adds its `trial`."""
    diverged: str = ""
    """Description of a divergence; empty if there was none."""

    # Provenance
    argv: Sequence[str] = ()
    python: str | None = None
    platform: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of all installed packages."""
    environment: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None

    # Of a sweep
    sweep: SweepMetadata | None = None
    fail_fast: bool = False

    # Of a trial
    trial: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the trial by dotted path."""
    configuration: int | None = None
    """Number of the configuration that the trial repeats; None if there are no repeats."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Each metric of its sweep with its mode."""
    exploits: ExploitedCheckpoint | None = None

    def __post_init__(self) -> None:
        for moment in (self.started, self.ended, *self.resumed):
            if moment is not None:
                seconds_at(moment)
        if self.best is not None:
            validate(self.best, _BestReport, "best")

    @property
    def is_complete(self) -> bool:
        return self.status in COMPLETE

    @property
    def driver(self) -> Process | None:
        if self.pid is None or self.host is None:
            return None
        return Process(self.pid, self.host, self.boot, self.process_started)

    def describe_driver(self, status: str) -> str | None:
        """Return the driver and the start of a running run; None if it is not running."""
        if status != "running" or self.driver is None:
            return None
        return f"{self.driver}, since {self.last_start}"

    @property
    def last_start(self) -> str:
        """Time at which it was last resumed, or else started."""
        return self.resumed[-1] if self.resumed else self.started

    @property
    def kind(self) -> str:
        """`run`, `sweep`, `evaluation` or `prediction`."""
        if self.sweep:
            return "sweep"
        return self.evaluates.noun if self.evaluates else "run"

    @property
    def wall_s(self) -> float | None:
        """Seconds that it ran, without the pauses before it was resumed; None while it is
        running."""
        if self.status == "running" or self.ended is None:
            return None
        # The clock may have been set back.
        return self.earlier_s + max(0.0, seconds_at(self.ended) - seconds_at(self.last_start))

    def measure_seconds(self, reports: Sequence[Mapping[str, Any]]) -> float | None:
        """Return the seconds that it ran, without pauses; until the last of its `reports` if no end
        is recorded, and None if there is none."""
        if self.wall_s is not None:
            return self.wall_s
        times = [seconds_at(report["time"]) for report in reports if "time" in report]
        if not times:
            return None
        return self.earlier_s + max(0.0, times[-1] - seconds_at(self.last_start))

    def describe_commit(self) -> str | None:
        """Return the commit of the code, and whether there were changes to it; None if it is
        unknown."""
        git = self.git or {}
        commit: str | None = git.get("commit")
        if not commit:
            return None
        if git.get("dirty", False) is None:
            return f"{commit}, perhaps with changes"
        return f"{commit} with changes" if git.get("dirty") else commit

    def describe_environment(self) -> dict[str, Any]:
        """Return what may change results besides the experiment, by dotted path."""
        return {
            "python": self.python,
            "platform": self.platform,
            "commit": self.describe_commit(),
            "variables": self.environment,
            "packages": self.packages,
        }

    @classmethod
    def check(cls, entries: Mapping[str, Any]) -> None:
        """Raise TypeError for an unknown entry, and ValueError for a wrong one."""
        cls(**entries)
        cls.read(entries)

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the metadata in the entries of `run.json`; raises ValueError."""
        return validate(entries, cls)
