"""The metadata of a run: what its `run.json` and the `attempt.json` of each attempt say. Imports neither ray nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, Self

from orchestrator.checkpoint.position import Position

EngineName = Literal["train", "gang", "in-process"]
"""What trains a run; a sweep's `engine` is one of the first two."""


@dataclass(frozen=True)
class SweepMetadata:
    """What trials are judged by, and how many there are to be."""

    metric: str
    mode: str
    trials: int
    objectives: Sequence[tuple[str, str]] = ()
    """Each metric with its mode."""


@dataclass(frozen=True)
class RunMetadata:
    """What `run.json` says of a run, a sweep or a trial of one. What is not known is None or empty."""

    name: str
    status: str
    """running, finished, stopped, interrupted or failed, as last written down."""
    started: str
    pid: int | None = None
    """The driver's process."""
    host: str | None = None
    boot: str | None = None
    """Which start of the driver's machine it was."""
    engine: EngineName | None = None
    """What trains it; not known of runs before there were three."""
    local: bool = False
    import_paths: Sequence[str] = ()
    """Of a run of before."""
    seed: int | None = None
    ended: str | None = None
    taken_up_by: Mapping[str, Any] | None = None
    """The process that is about to go on with it, as `driver_identity` says, until that drives it or refuses."""
    resumed: Sequence[str] = ()
    """When it was taken up again."""
    attempts: int | None = None
    ranks: int | None = None
    """Of the last attempt."""
    hosts: Sequence[str] = ()
    """Of the last attempt."""
    stopped: Sequence[str] = ()
    """Why it ended before its time."""
    error: str | None = None
    mistake: bool = False
    """Whether it failed in a way that would come again."""
    metric_missing: bool = False
    """Whether it failed as its reports lack the sweep's metric."""
    goes_on_from: Mapping[str, Any] | None = None
    """The checkpoint of another run that it began with, as `Predecessor` in `config/source.py`."""
    tags: Sequence[str] = ()
    notes: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What hooks know of it."""
    best: Mapping[str, Any] | None = None
    """What it reached when it was last left, as `Best` in `runs/best.py`; of a sweep with the `trial`."""

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
    modes: Mapping[str, str] = field(default_factory=dict)
    """Each metric of its sweep with its mode."""
    takes_over: Mapping[str, Any] | None = None
    """The checkpoint of another trial that it goes on from, and the attempts made before."""

    @property
    def wall_s(self) -> float | None:
        """From its start to its end, in whole seconds; None of one that is under way."""
        if self.status == "running" or self.ended is None:
            return None
        return (datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)).total_seconds()

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Self:
        """From the entries of `run.json`; those of a later version are passed over."""
        sweep = entries.get("sweep")
        return cls(**{**_known(cls, entries), "sweep": sweep and SweepMetadata(**_known(SweepMetadata, sweep))})


@dataclass(frozen=True)
class Host:
    """Where one rank of an attempt is."""

    rank: int
    node: str
    local_rank: int = 0
    device: str = "cpu"
    torch: str | None = None


@dataclass(frozen=True)
class Attempt:
    """One life of a worker group: which number it has, and where it began."""

    number: int
    checkpoint: str | None = None
    """None where it began with nothing."""
    position: Position = Position()
    started: str | None = None
    world_size: int = 1
    hosts: Sequence[Host] = ()
    epoch_iterations: int | None = None
    """Training iterations of a whole epoch on each rank."""

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Self:
        """From the entries of `attempt.json`."""
        position = Position.read(entries["position"]) if entries.get("position") else Position()
        hosts = tuple(Host(**_known(Host, host)) for host in entries.get("hosts", ()))
        return cls(**{**_known(cls, entries), "number": entries["attempt"], "position": position, "hosts": hosts})

    def entries(self) -> dict[str, Any]:
        """As kept in `attempt.json`."""
        entries = asdict(self)
        return {"attempt": entries.pop("number"), **entries, "position": entries["position"] if self.checkpoint else None}


def _known(cls: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in entries.items() if name in names}
