"""Metadata of a run (`run.json`) and of its attempts (`attempt.json`), and its reports
(`metrics.jsonl`).

Imports neither ray, torch nor pandas, so that `ls` and `show` are quick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt

from hooks.position import Count, Position, Stage
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.disk.lease import Process
from orchestrator.experiment.yaml.source import InitialWeights, ParentCheckpoint
from orchestrator.storage.stored_data import log_omission, validate

EngineName = Literal["train", "gang", "in-process"]
IfExists = Literal["error", "number", "replace"]
"""What a new run does if its name is taken: it is refused, takes a numbered name, or replaces the
other run."""
"""Engine of a run; a sweep uses one of the first two."""
Status = Literal["running", "finished", "stopped", "interrupted", "failed"]
Mode = Literal["max", "min"]
REPORTS = "metrics.jsonl"


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
    aggregate: str = "mean"
    """Aggregation of repeats."""


@dataclass(frozen=True)
class ExploitedCheckpoint:
    """The checkpoint of another trial that a trial continues from, and its number of attempts
    before that."""

    checkpoint: str
    attempts: int


@dataclass(frozen=True)
class Evaluated(ParentCheckpoint):
    """The checkpoint that an evaluation measures, and the phase."""

    phase: Literal["val", "test"]

    def __str__(self) -> str:
        return f"{super().__str__()}, on {self.phase}"


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
    def driver(self) -> Process | None:
        if self.pid is None or self.host is None:
            return None
        return Process(self.pid, self.host, self.boot, self.process_started)

    def describe_driver(self, status: str) -> str | None:
        """Return the driver and the start of a running run; None if it is not running."""
        if status != "running" or self.driver is None:
            return None
        return f"{self.driver}, since {[self.started, *self.resumed][-1]}"

    @property
    def wall_s(self) -> float | None:
        """Seconds from start to end; None while the run is running."""
        if self.status == "running" or self.ended is None:
            return None
        return max(
            0.0, seconds_at(self.ended) - seconds_at(self.started)
        )  # the clock may have been set back

    def describe_environment(self) -> dict[str, Any]:
        """Return what may change results besides the experiment, by dotted path."""
        git = self.git or {}
        commit = git.get("commit")
        return {
            "python": self.python,
            "platform": self.platform,
            "commit": f"{commit} with changes" if commit and git.get("dirty") else commit,
            "variables": self.environment,
            "packages": self.packages,
        }

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the metadata in the entries of `run.json`; raises ValueError."""
        return validate(entries, cls)


@dataclass(frozen=True)
class Host:
    """Host and device of a rank."""

    rank: int
    node: str
    local_rank: int = 0
    device: str = "cpu"
    torch: str | None = None
    threads: int | None = None
    """Torch's threads, which affect the rounding of sums."""


@dataclass(frozen=True)
class LeadingAttempt:
    """Attempt of another trial whose training rows belong to this trial, too."""

    trial: str
    attempt: int


@dataclass(frozen=True)
class DataOrder:
    """Settings that determine the order of the samples, apart from the start and the world size."""

    values: Mapping[str, Any]
    """Values of the experiment by path."""
    sizes: Mapping[str, int]
    """Number of samples by phase, except streams."""

    def __post_init__(self) -> None:
        loader = self.values.get("loader")
        if not isinstance(loader, Mapping) or not isinstance(loader.get("num_workers"), int):
            raise ValueError("`order.values` has no `loader.num_workers`")


@dataclass(frozen=True)
class Attempt:
    """A start of a worker group."""

    number: Count
    checkpoint: str | None = None
    """Checkpoint that it resumed from; None if it started from scratch."""
    position: Position = Position()
    started: str | None = None
    world_size: Annotated[int, Ge(1)] = 1
    hosts: Sequence[Host] = ()
    samples: Sequence[int] = ()
    """Training samples of each rank at the start of the attempt, if ranks differ in them."""
    epoch_iterations: int | None = None
    """Training iterations of an epoch on each rank."""
    order: DataOrder | None = None
    """None for a task that trains by itself."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Fingerprint of each section of the experiment, to see whether settings have changed."""
    leader: LeadingAttempt | None = None
    """Attempt that it follows in a shared training, if any."""
    until: int | None = None
    """Last training iteration of its run, if the run shares a training run that may continue for
    others."""

    @property
    def has_own_rows(self) -> bool:
        """False for a task that trains by itself, and for a follower."""
        return self.order is not None and self.leader is None

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the attempt in the entries of `attempt.json`; raises ValueError."""
        attempt = validate(entries, cls)
        parse_position(entries.get("position"))
        if attempt.started is not None:
            seconds_at(attempt.started)
        return attempt


@dataclass(frozen=True)
class _ReportEntries:
    """Entries of a report other than its metrics."""

    attempt: int | None = None
    iteration: int | None = None
    time: str | None = None
    epoch: int | None = None
    step: int | None = None


def check_report(line: Any) -> dict[str, Any]:
    """Return a line of metrics.jsonl that is valid; raises ValueError otherwise."""
    entries = validate(line, _ReportEntries)
    if not line or (entries.attempt is None and (entries.iteration, entries.time) != (None, None)):
        raise ValueError("it has no `attempt`")
    if entries.time is not None:
        seconds_at(entries.time)
    return dict(line)


def drop_superseded(
    lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]
) -> list[Mapping[str, Any]]:
    """Return the reports that no later attempt has repeated; each attempt repeats the report of the
    test phase."""
    current = []
    for line in lines:
        if line.get("attempt") is None or line.get("iteration") is None:
            log_omission(
                REPORTS, f"a report without attempt or iteration is left out: {dict(line)}"
            )
            continue
        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        is_test = any(name.startswith("test/") for name in line)
        reported = Position(iteration=line["iteration"], stage=Stage.REPORTED)
        if not any(is_test or start < reported for start in later):
            current.append(line)
    return current
