"""The attempts of a run: each start of its workers has a file, `attempt.json`.

Imports neither ray, torch nor pandas, so that `ls` and `show` are quick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self

from annotated_types import Ge

from hooks.metrics.direction import Mode
from hooks.position import Count, Position
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.disk.timestamps import format_now, seconds_at
from orchestrator.errors import MISSING, DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.omissions import warn_once
from orchestrator.storage.validation import validate

ADVICE = "Restore it from a backup; without it, the rows and reports of this attempt cannot be used"
"""Advice for a damaged `attempt.json`."""


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

    # Once its workers have started

    number: Count
    checkpoint: str | None = None
    """Checkpoint that it resumed from; None if it started from scratch."""
    position: Position = Position()
    started: str | None = None
    world_size: Annotated[int, Ge(1)] = 1
    hosts: Sequence[Host] = ()

    # Once its checkpoint is restored

    samples: Sequence[int] = ()
    """Training samples of each rank at the start of the attempt, if ranks differ in them."""

    # Once its training is set up

    epoch_iterations: int | None = None
    """Training iterations of an epoch on each rank."""
    order: DataOrder | None = None
    """None for a task with a training loop of its own."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Fingerprint of each section of the experiment, to see whether settings have changed."""
    meter_modes: Mapping[str, Mode] = field(default_factory=dict)
    """`max` or `min` for each meter of the task that says whether higher is better."""
    leader: LeadingAttempt | None = None
    """Attempt that it follows in a shared training, if any."""

    # Once its run has ended

    until: int | None = None
    """Last training iteration of its run, if the run shares a training run that may continue for
    others."""

    @property
    def has_own_rows(self) -> bool:
        """False for a task with a training loop of its own, and for a follower."""
        return self.order is not None and self.leader is None

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the attempt in the entries of `attempt.json`; raises ValueError."""
        attempt = validate(entries, cls)
        parse_position(entries.get("position"))
        if attempt.started is not None:
            seconds_at(attempt.started)
        return attempt


def get_meter_modes(attempts: Sequence[Attempt]) -> Mapping[str, Mode]:
    """Return the modes of the task's meters in the newest attempt."""
    return attempts[-1].meter_modes if attempts else {}


def find_leader(attempts: Sequence[Attempt]) -> str | None:
    """Return the trial whose training the newest attempt shares; None if it trains by itself."""
    leader = attempts[-1].leader if attempts else None
    return leader.trial if leader else None


def measure_training_seconds(
    attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> float:
    """Return the training time of a run in seconds: from the start of each attempt to the last of
    its reports."""
    ends = {line["attempt"]: seconds_at(line["time"]) for line in reports if "time" in line}
    durations = [
        max(0.0, ends[attempt.number] - seconds_at(attempt.started))
        for attempt in attempts
        if attempt.started and attempt.number in ends
    ]
    return sum(durations, start=0.0)


def rank_folder(attempt: int, rank: int) -> str:
    """Return the folder of a rank's rows, in the run's folder."""
    return f"stats/attempt={attempt}/rank={rank}"


def read_attempts(storage: Storage) -> list[Attempt]:
    """Return every attempt, oldest first. An attempt with rows but no attempt.json is skipped with
    a warning."""
    attempts = storage.map(lambda number: _read_attempt(storage, number), _list_numbers(storage))
    return [attempt for attempt in attempts if attempt]


def _list_numbers(storage: Storage) -> list[int]:
    """Return the numbers of the attempts that have a folder, in order; 0 if only compacted rows are
    left."""
    folders = [name for name in storage.names("stats") if name.startswith("attempt=")]
    suffixes = [name.removeprefix("attempt=") for name in folders]
    numbers = sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())
    if not numbers and storage.exists("stats.parquet"):
        return [0]
    return numbers


def _read_attempt(storage: Storage, number: int) -> Attempt | None:
    try:
        return read_json(storage, _path(number), Attempt.read, ADVICE)
    except FileNotFoundError:
        if _has_begun(storage, number):
            warn_once(str(make_lost_attempt_error(storage, number)))
        return None


def _has_begun(storage: Storage, number: int) -> bool:
    """Return whether an attempt that has a folder has begun. A start that was cut short leaves an
    empty folder, as compaction does for an attempt whose `attempt.json` is lost."""
    return storage.exists("stats.parquet") or bool(storage.names(f"stats/attempt={number}"))


def make_lost_attempt_error(storage: Storage, number: int) -> DamagedFile:
    return DamagedFile(str(storage / _path(number)), MISSING, ADVICE)


def begin_attempt(
    storage: Storage,
    checkpoint: str | None = None,
    position: Position | None = None,
    hosts: Sequence[Host] = (),
    world_size: int = 1,
) -> Attempt:
    """Record the start of a new attempt. The number of one whose `attempt.json` is lost is not used
    again, because its rows and reports have that number."""
    numbers = reversed(_list_numbers(storage))
    newest = next((number for number in numbers if _has_begun(storage, number)), -1)
    attempt = Attempt(
        newest + 1,
        checkpoint=checkpoint,
        position=position or Position(),
        started=format_now(),
        world_size=world_size,
        hosts=hosts,
    )
    write_attempt(storage, attempt)
    return attempt


def write_attempt(storage: Storage, attempt: Attempt) -> None:
    write_json(storage, _path(attempt.number), asdict(attempt))


def _path(number: int) -> str:
    return f"stats/attempt={number}/attempt.json"
