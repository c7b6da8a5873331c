"""The lease on a run, which allows one driver at a time, and the identity of a driver's process.

Its claims are files in the run's folder, on a disk, NFS or an object store. Imports neither ray nor
torch.
"""

import secrets
import shlex
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from threading import Event, Lock, Thread
from time import gmtime, sleep, strftime, time
from typing import Literal, Self

from orchestrator.disk.process import Process, is_pid_alive
from orchestrator.errors import HookyardError, LeaseLost, StorageError, UsageError
from orchestrator.storage import FileState, Storage
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.storage.validation import validate

FOLDER = ".driver"
"""Folder with the claims on a run."""
HEARTBEAT_S = 10.0
LEASE_TTL_S = 120.0
"""Time without a heartbeat after which a driver on another machine counts as dead. Requests to S3
are repeated for less. NFS shows a change within half this time."""
_WAIT_S = 0.2

_leases: "dict[str, Lease]" = {}
"""Leases that this process holds or requests, by the names of their claims."""

State = Literal["requested", "held", "released"]


@dataclass(frozen=True)
class Claim:
    """A driver's claim on a run, as stored in the claim file."""

    name: str
    """Unique name of the file."""
    state: State
    driver: Process
    since: str
    fencing_token: int = 0
    """Number that increases with each driver of the run, starting at 1; 0 until the driver has the
    lease."""

    @property
    def precedence(self) -> tuple[int, str]:
        """Sort key of claims: the driver whose claim sorts last has the lease."""
        return self.fencing_token, self.name

    def is_alive(self, files: Mapping[str, FileState], now: float | None) -> bool:
        """Check the process of a driver on this machine; otherwise the claim's age.

        Args:
            files: States of the files of claims, dated by the store's clock.
            now: Unix time: by the store's clock where a lease is decided, by this machine's where a
                reader only shows the status; None if unknown.
        """
        if self.state == "released":
            return False
        if self.driver.is_current():
            return self.name in _leases
        if self.driver.is_visible():
            return self.driver.is_alive()
        written = files[self.name].modified if self.name in files else None
        return written is None or now is None or now - written < LEASE_TTL_S


def read_claims(run: Storage) -> list[Claim]:
    folder = run / FOLDER
    names = [name for name in folder.names() if name.endswith(".json")]
    claims = [_read_claim(folder, name) for name in names]
    return [claim for claim in claims if claim]


def _read_claim(folder: Storage, name: str) -> Claim | None:
    """Read a claim; return None if it has just been deleted. A damaged claim counts as an unknown
    driver's."""
    try:
        return replace(validate(parse_json(folder.read(name)), Claim), name=name)
    except FileNotFoundError:
        return None
    except ValueError:
        return Claim(name, "held", Process(0, "an unknown host"), "an unknown time")


def is_driven(run: Storage, *, other_process: bool = False) -> bool | None:
    """Return whether a run has a live driver; None if it never had one.

    A reader writes nothing, so it cannot ask for the store's time. If its own clock is more than
    LEASE_TTL_S ahead, a live driver on another machine seems dead; whoever then resumes the run is
    refused, because acquiring a lease uses the store's clock.

    Args:
        run: The run, or the sweep of a trial.
        other_process: Whether to ignore this process.
    """
    claims = read_claims(run)
    if other_process:
        claims = [claim for claim in claims if not claim.driver.is_current()]
    if not claims:
        return None
    files = _list_files(run / FOLDER, claims)
    return any(claim.is_alive(files, time()) for claim in claims)


def is_driver_dead(driver: Process | None, run: Storage) -> bool:
    """Return whether the driver of a running run is dead: its process if this machine can see it,
    otherwise its claim in `run`. False if nothing is known."""
    if driver is None:
        return False
    if driver.is_visible():
        return not driver.is_alive()
    return is_driven(run) is False


def _list_files(folder: Storage, claims: Sequence[Claim]) -> Mapping[str, FileState]:
    """Return the files of claims, if the age of any is needed."""
    return {} if all(claim.driver.is_visible() for claim in claims) else folder.tree()


def check_lease(path: str) -> None:
    """Raise LeaseLost if another driver has taken over the run at `path`, or its sweep."""
    for lease in [*_leases.values()]:
        if lease.covers(path):
            lease.renew()


def delete_leftovers(storage: Storage) -> None:
    """Delete the unfinished files of dead processes, at any depth.

    A process on another machine seems dead as well. Among those, only the drivers of folders with
    claims of their own can be alive, such as the evaluations of a run: what these write is kept.

    Args:
        storage: A folder whose lease this process has.
    """
    for name, pid in storage.list_unfinished().items():
        folders = PurePosixPath(name).parents[:-1]
        if not is_pid_alive(pid) and not any(
            is_driven(storage / str(folder)) for folder in folders
        ):
            storage.delete(name)


class Lease:
    """The right to drive a run or a sweep until the `with` block or the process ends. Used in the
    driver.

    Each driver writes a claim, lists all claims, and has the lease once no other claim is live. If
    two drivers request the lease at the same time, the one that lists last sees both claims, even
    if their clocks differ. It is refused the lease if the other driver has the lease, or if the other claim's
    name sorts first; otherwise it waits. Claims of dead drivers are ignored. A driver wrongly
    presumed dead finds a higher fencing token, and raises LeaseLost before it writes.

    Entering raises UsageError for another live driver or a failed storage. `force` presumes drivers
    elsewhere dead.
    """

    def __init__(self, run: Storage, *, force: bool = False) -> None:
        self._run = run
        self._folder = run / FOLDER
        self._force = force
        self.name = f"{secrets.token_hex(8)}.json"
        since = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        self._claim = Claim(self.name, "requested", Process.current(), since)
        self._loss_reason: str | None = None
        self._lock = Lock()
        self._released = Event()

    def __enter__(self) -> Self:
        _leases[self.name] = self
        try:
            self._acquire()
            delete_leftovers(self._run)
        except BaseException as error:
            with suppress(HookyardError, OSError):
                self._folder.delete(self.name)
            del _leases[self.name]
            if isinstance(error, StorageError):
                raise UsageError(f"{error}. Nothing was started.") from error
            raise
        Thread(target=self._send_heartbeats, name="lease-heartbeat", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._released.set()
        with self._lock, suppress(HookyardError, OSError):
            if not self._loss_reason:
                self._write("released")
        del _leases[self.name]

    def covers(self, path: str) -> bool:
        """Return whether a path is the run, or a trial of the sweep."""
        return self._claim.state == "held" and f"{path}/".startswith(f"{self._run.path}/")

    def check(self) -> None:
        """Raise LeaseLost if a heartbeat found another driver."""
        if self._loss_reason:
            raise LeaseLost(f"{self._loss_reason}. This driver stops and writes nothing more there")

    def renew(self) -> None:
        """Write a heartbeat; raises LeaseLost if another driver has the run."""
        with self._lock:
            if not self._loss_reason and not self._released.is_set():
                self._loss_reason = self._find_loss_reason(read_claims(self._run))
                if self._loss_reason is None:
                    self._write("held")
                else:
                    self._folder.delete(self.name)
        self.check()

    def _find_loss_reason(self, claims: Sequence[Claim]) -> str | None:
        highest = max(claims, key=lambda claim: claim.precedence, default=self._claim)
        if highest.precedence > self._claim.precedence:
            return (
                f"{highest.driver} has driven {self._run} since {highest.since}: this driver wrote no heartbeat for"
                f" {LEASE_TTL_S:g} s, or the other driver used --force-lease"
            )
        if not any(claim.name == self.name for claim in claims):
            own_file = f"{self._folder}/{self.name}"
            return f"{self._run}, or the claim of its driver ({own_file}), was removed"
        return None

    def _send_heartbeats(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            try:
                self.renew()
            except LeaseLost:
                return
            except (HookyardError, OSError):
                continue  # without the storage, no other driver can claim the run

    def _write(self, state: State, fencing_token: int | None = None) -> None:
        token = self._claim.fencing_token if fencing_token is None else fencing_token
        self._claim = replace(self._claim, state=state, fencing_token=token)
        self._folder.write(self.name, format_json(asdict(self._claim), 1))

    def _acquire(self) -> None:
        presumed_dead: set[str] = set()
        if self._force:
            claims = read_claims(self._run)
            presumed_dead = {claim.name for claim in claims if not claim.driver.is_visible()}

        others, alive = self._request(presumed_dead)
        while alive:
            for claim in alive:
                if claim.state == "held" or claim.name < self.name:
                    raise UsageError(self._describe_refusal(claim))
            sleep(_WAIT_S)
            others, alive = self._request(presumed_dead)

        self._write("held", max((claim.fencing_token for claim in others), default=0) + 1)
        for claim in others:
            self._folder.delete(claim.name)

    def _request(self, presumed_dead: Container[str]) -> tuple[list[Claim], list[Claim]]:
        """Write this driver's claim; return the other claims, and the live ones among them."""
        self._write("requested")
        others = [claim for claim in read_claims(self._run) if claim.name != self.name]
        # List after reading the claims: NFS refreshes the attributes of a file when it is opened.
        files = _list_files(self._folder, others)
        now = files[self.name].modified if self.name in files else None
        candidates = [claim for claim in others if claim.name not in presumed_dead]
        return others, [claim for claim in candidates if claim.is_alive(files, now)]

    def _describe_refusal(self, other: Claim) -> str:
        if other.state == "requested":
            return f"{other.driver} started driving {self._run} at the same time and was first"
        if other.driver.is_visible():
            return f"{self._run} is still running (process {other.driver.pid}, since {other.since}); stop it first"
        return (
            f"{self._run} has been driven by {other.driver} since {other.since}, and this machine cannot check"
            f" whether that driver is alive. It counts as dead {LEASE_TTL_S:g} s after its last heartbeat. Stop it"
            " there, or wait. If you are sure that it is dead, run:"
            f" hookyard resume {shlex.quote(str(self._run))} --force-lease"
        )
