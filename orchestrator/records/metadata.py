"""The metadata of a run: what its `run.json` and the `attempt.json` of each attempt say. Imports neither ray nor
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Self

from orchestrator.checkpoint.position import Position
from orchestrator.config.text.source import InitialWeights, ParentCheckpoint
from orchestrator.records.process import Process
from orchestrator.storage.stored_data import checked

EngineName = Literal["train", "gang", "in-process"]
"""What trains a run; a sweep's `engine` is one of the first two."""
Status = Literal["running", "finished", "stopped", "interrupted", "failed"]
Mode = Literal["max", "min"]


def seconds_at(moment: str) -> float:
    """Seconds since 1970 of a time as `now` writes it; raises ValueError for what is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{moment!r} is no time") from None


@dataclass(frozen=True)
class SweepMetadata:
    """What trials are judged by, and how many there are to be."""

    metric: str
    mode: Mode
    trials: int
    objectives: Sequence[tuple[str, Mode]] = ()
    """Each metric with its mode."""
    repeats: int = 1
    """Trials of each configuration."""
    aggregate: str = "mean"
    """What these are judged by."""


@dataclass(frozen=True)
class ExploitedCheckpoint:
    """The checkpoint of another trial that a trial goes on from, and how many attempts it had made before."""

    checkpoint: str
    attempts: int


@dataclass(frozen=True)
class Evaluated(ParentCheckpoint):
    """The checkpoint that an evaluation measures, and on which phases."""

    phase: Literal["val", "test"]

    def __str__(self) -> str:
        return f"{super().__str__()}, on {self.phase}"


@dataclass(frozen=True)
class _Reached:
    """What is read of `best` without knowing more of it."""

    metric: str
    value: float
    checkpoint: str | None
    trial: str | None = None


@dataclass(frozen=True)
class RunMetadata:
    """What `run.json` says of a run, a sweep or a trial of one. What is not known is None or empty."""

    name: str
    status: Status
    """As last written down."""
    started: str
    pid: int | None = None
    """The driver's process, as `Process` has it."""
    host: str | None = None
    boot: str | None = None
    process_started: str | None = None
    engine: EngineName | None = None
    """What trains it."""
    local: bool = False
    seed: int | None = None
    ended: str | None = None
    resumed: Sequence[str] = ()
    """When it was taken up again."""
    attempts: int | None = None
    ranks: int | None = None
    """Of the last attempt."""
    reports: int | None = None
    """Lines of metrics.jsonl when it ended."""
    hosts: Sequence[str] = ()
    """Of the last attempt."""
    stopped: Sequence[str] = ()
    """Why it ended before its time."""
    error: str | None = None
    mistake: bool = False
    """Whether it failed in a way that would come again."""
    metric_missing: bool = False
    """Whether it failed as its reports lack the sweep's metric."""
    continued_from: Mapping[str, Any] | None = None
    """The checkpoint of another run that it began with, as `ParentCheckpoint` has it."""
    init: Mapping[str, Any] | None = None
    """The weights that it began with, as `InitialWeights` has them."""
    evaluates: Mapping[str, Any] | None = None
    """What it measures where it trains nothing, as `Evaluated` has it."""
    tags: Sequence[str] = ()
    notes: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What hooks know of it."""
    best: Mapping[str, Any] | None = None
    """What it reached when it was last left, as `Best` in `runs/best.py`; of a sweep with the `trial`."""
    diverged: str = ""
    """How its training had diverged by then; empty where it had not."""

    # Provenance
    argv: Sequence[str] = ()
    python: str | None = None
    platform: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None

    # Of a sweep
    sweep: SweepMetadata | None = None
    fail_fast: bool = False

    # Of a trial
    trial: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Dotted path to what it has chosen."""
    configuration: int | None = None
    """Which configuration it is a repeat of; None where nothing is repeated."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Each metric of its sweep with its mode."""
    exploits: ExploitedCheckpoint | None = None

    def __post_init__(self) -> None:
        for moment in (self.started, self.ended, *self.resumed):
            if moment is not None:
                seconds_at(moment)
        if self.continued_from is not None:
            checked(self.continued_from, ParentCheckpoint, "continued_from")
        if self.init is not None:
            checked(self.init, InitialWeights, "init")
        if self.evaluates is not None:
            checked(self.evaluates, Evaluated, "evaluates")
        if self.best is not None:
            checked(self.best, _Reached, "best")
        if self.pid is not None and not 0 < self.pid < 2**31:
            raise ValueError(f"`pid` is {self.pid}, which is no process")

    @property
    def driver(self) -> Process | None:
        """Who drives it, or did last."""
        return (
            None
            if self.pid is None or self.host is None
            else Process(self.pid, self.host, self.boot, self.process_started)
        )

    @property
    def is_driver_gone(self) -> bool:
        """Whether the driver was on this machine and lives no more."""
        return self.driver is not None and self.driver.is_visible() and not self.driver.is_alive()

    def driver_in_words(self, status: str) -> str | None:
        """Who drives it, and since when, while its status is that it runs."""
        return (
            f"{self.driver}, since {[self.started, *self.resumed][-1]}" if status == "running" and self.driver else None
        )

    @property
    def wall_s(self) -> float | None:
        """From its start to its end, in whole seconds; None of one that is under way."""
        if self.status == "running" or self.ended is None:
            return None
        return seconds_at(self.ended) - seconds_at(self.started)

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the metadata in the entries of `run.json`; raises ValueError."""
        metadata: Self = checked(entries, cls)
        return metadata


@dataclass(frozen=True)
class Host:
    """Where one rank of an attempt is."""

    rank: int
    node: str
    local_rank: int = 0
    device: str = "cpu"
    torch: str | None = None
    threads: int | None = None
    """Torch's threads, by which it splits and rounds sums."""


@dataclass(frozen=True)
class SharedTraining:
    """Whose rows of training are those of an attempt too: another trial's, in one of its attempts."""

    trial: str
    attempt: int


@dataclass(frozen=True)
class DataOrder:
    """What decides which samples a batch of an attempt has, beside where that began and how many ranks it had."""

    values: Mapping[str, Any]
    """Of its experiment, by their paths."""
    sizes: Mapping[str, int]
    """Phase to its samples, where it is no stream."""


@dataclass(frozen=True)
class Attempt:
    """One start of a worker group: its number, and where it began."""

    number: int
    checkpoint: str | None = None
    """None where it began with nothing."""
    position: Position = Position()
    started: str | None = None
    world_size: int = 1
    hosts: Sequence[Host] = ()
    epoch_iterations: int | None = None
    """Training iterations of a whole epoch on each rank."""
    order: DataOrder | None = None
    """None of a task that trains by itself."""
    leader: SharedTraining | None = None
    """Of a follower."""
    until: int | None = None
    """The training iteration with which its run was over, where its training may go on for others."""

    @property
    def has_own_rows(self) -> bool:
        """Whether its ranks record rows: one that trains by itself need not, nor one whose training is shared."""
        return self.order is not None and self.leader is None

    @classmethod
    def read(cls, entries: Any) -> Self:
        """From the entries of `attempt.json`; raises ValueError."""
        given = dict(checked(entries, Mapping[str, Any]))
        for name in ("attempt", "position"):
            if name not in given:
                raise ValueError(f"it has no `{name}`")
        number, position = given.pop("attempt"), given.pop("position")
        attempt: Self = checked({**given, "number": number}, cls)
        if attempt.number < 0 or attempt.world_size < 1:
            raise ValueError(f"it is attempt {attempt.number} of {attempt.world_size} ranks")
        if attempt.started is not None:
            seconds_at(attempt.started)
        return replace(attempt, position=Position() if position is None else Position.read(position))

    def entries(self) -> dict[str, Any]:
        """As kept in `attempt.json`."""
        entries = asdict(self)
        return {
            "attempt": entries.pop("number"),
            **entries,
            "position": entries["position"] if self.checkpoint else None,
        }
