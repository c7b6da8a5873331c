"""The metadata of a run: the content of `run.json`.

Imports neither ray, torch nor pandas, so that `ls` and `show` are quick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeVar

from hooks.metrics.direction import Mode
from orchestrator.disk.best import Best, read_best
from orchestrator.disk.process import Process
from orchestrator.disk.statuses import COMPLETE, Status
from orchestrator.disk.timestamps import seconds_at
from orchestrator.experiment.yaml.origins import InitialWeights, ParentCheckpoint
from orchestrator.storage.validation import check_mapping, validate

T = TypeVar("T")

EngineName = Literal["train", "gang", "in-process"]
"""Engine of a run; a sweep uses one of the first two."""


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
    """The command: `hookyard evaluate` or `hookyard predict`."""

    def __str__(self) -> str:
        return f"{super().__str__()}, on {self.data or self.phase}"

    @property
    def kind(self) -> str:
        """`evaluation` or `prediction`."""
        return "prediction" if self.verb == "predict" else "evaluation"


@dataclass(frozen=True)
class Provenance:
    """The command of a run, its code and its environment."""

    argv: Sequence[str] = ()
    python: str | None = None
    platform: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of all installed packages."""
    environment: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None

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


@dataclass(frozen=True)
class TrialSettings:
    """What a sweep has set for a trial; empty for a run without a sweep."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the trial by dotted path."""
    configuration: int | None = None
    """Number of the configuration that the trial repeats; None if there are no repeats."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Each metric of its sweep with its mode."""
    exploits: ExploitedCheckpoint | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchMetadata:
    """What is known of a run before it begins."""

    provenance: Provenance = field(default_factory=Provenance)
    engine: EngineName | None = None
    local: bool = False
    seed: int | None = None
    tags: Sequence[str] = ()
    notes: str = ""
    continued_from: ParentCheckpoint | None = None
    init: InitialWeights | None = None
    evaluates: Evaluated | None = None
    """Checkpoint of an evaluation or a prediction."""
    sweep: SweepMetadata | None = None
    """Settings of a sweep."""
    fail_fast: bool = False
    """True for a sweep that ends with the first failed trial."""
    trial: str | None = None
    """Name of a trial."""
    trial_settings: TrialSettings = field(default_factory=TrialSettings)


NOTHING_KNOWN = LaunchMetadata()


@dataclass(frozen=True, kw_only=True)
class RunMetadata(LaunchMetadata):
    """Content of `run.json` of a run, a sweep, a trial, an evaluation or a prediction. Unknown
    entries are None or empty.

    The file has no nested records for the driver, the provenance and the settings of a trial: their
    entries stand beside the others.
    """

    name: str
    status: Status
    """Last recorded status."""
    started: str
    driver: Process | None = None

    # Once it has begun
    resumed: Sequence[str] = ()
    """Times at which it was resumed."""
    earlier_s: float = 0.0
    """Seconds that it ran before it was last resumed."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Information from hooks."""

    # Once it has ended
    ended: str | None = None
    attempts: int | None = None
    ranks: int | None = None
    """Number of ranks of the last attempt."""
    hosts: Sequence[str] = ()
    """Hosts of the last attempt."""
    reports: int | None = None
    """Number of lines of metrics.jsonl at the end of the run."""
    best: Best | None = None
    """Best report; that of a sweep has its trial."""
    diverged: str = ""
    """Description of a divergence; empty if there was none."""
    stopped: Sequence[str] = ()
    """Reasons for an early end."""
    error: str | None = None
    is_user_error: bool = False
    """True if the failure would repeat, such as an error in the experiment."""
    metric_missing: bool = False
    """True if it failed because its reports lack the sweep's metric."""

    def __post_init__(self) -> None:
        for moment in (self.started, self.ended, *self.resumed):
            if moment is not None:
                seconds_at(moment)

    @property
    def is_complete(self) -> bool:
        return self.status in COMPLETE

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
        return self.evaluates.kind if self.evaluates else "run"

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

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Return the metadata in the entries of `run.json`; raises ValueError."""
        entries = check_mapping(entries)
        own = {name: value for name, value in entries.items() if name not in _RECORDS}
        has_driver = None not in (entries.get("pid"), entries.get("host"))
        return replace(
            validate({**own, "best": None}, cls),
            driver=_read_record(entries, Process) if has_driver else None,
            provenance=_read_record(entries, Provenance),
            trial_settings=_read_record(entries, TrialSettings),
            best=read_best(entries.get("best")),
        )

    def record(self) -> dict[str, Any]:
        """Return the entries of `run.json`."""
        entries = {"name": self.name, "status": self.status, **asdict(self)}
        for name, kind in _RECORDS.items():
            record = entries.pop(name)
            entries |= record or dict.fromkeys(_list_names(kind))
        return entries


_RECORDS = {"driver": Process, "provenance": Provenance, "trial_settings": TrialSettings}
"""Records whose entries are in `run.json` beside those of RunMetadata."""


def _read_record(entries: Mapping[str, Any], kind: type[T]) -> T:
    names = _list_names(kind)
    own = {name: value for name, value in entries.items() if name in names}
    return validate(own, kind)


def _list_names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]
