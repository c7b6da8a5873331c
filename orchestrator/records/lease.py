"""A run has one driver: who that is, taken by claims in the run's folder, alike on a disk, NFS and an object store."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from threading import Event, Lock, Thread
from time import gmtime, sleep, strftime, time
from typing import Literal, Self

from orchestrator.errors import HookyardError, LeaseLost, StorageError, UsageError
from orchestrator.records.process import Process, is_pid_alive
from orchestrator.storage import FileState, Storage
from orchestrator.storage.stored_data import checked, parsed

FOLDER = ".driver"
"""Where the claims of a run lie."""
HEARTBEAT_S = 10.0
"""How often a driver gives a heartbeat."""
LEASE_TTL_S = 120.0
"""A driver that cannot be seen and gave no sign for so long is gone: as long as a storage that is away is asked again,
and twice what NFS may keep back."""
_WAIT_S = 0.2
_LOOKS, _WRITING_S = 10, 0.02
"""How often a claim that makes no sense is read, and the time between."""

_own: dict[str, Lease] = {}
"""The leases that this process has or asks for, by the names of their claims."""


State = Literal["asking", "driving", "over"]


@dataclass(frozen=True)
class _Claim:
    """What a claim's file holds beside its driver."""

    state: State
    since: str
    fencing_token: int


@dataclass(frozen=True)
class Claim:
    """What one driver says: that it asks for the run, drives it, or did."""

    name: str
    """Of its file, which no other driver has."""
    state: State
    driver: Process
    since: str
    fencing_token: int = 0
    """The how-many-th driver of the run it is; 0 as long as it asks."""

    @property
    def rank(self) -> tuple[int, str]:
        """Of two drivers the one with the greater rank took the run over."""
        return self.fencing_token, self.name

    def is_alive(self, files: Mapping[str, FileState], now: float | None) -> bool:
        """Whether its driver is still there: seen from here, or by the age of its last sign at `now`, by the clock of
        whoever keeps the files."""
        if self.state == "over":
            return False
        if self.driver.is_this():
            return self.name in _own
        if self.driver.is_visible():
            return self.driver.is_alive()
        sign = files[self.name].modified if self.name in files else None
        return sign is None or now is None or now - sign < LEASE_TTL_S


def claims_in(run: Storage) -> list[Claim]:
    """Every claim of a run, a sweep's too."""
    there = run / FOLDER
    return [claim for name in there.names() if name.endswith(".json") and (claim := _read(there, name))]


def _read(there: Storage, name: str) -> Claim | None:
    """A claim; None of one that was withdrawn meanwhile. One that is damaged may be of somebody who drives, and will
    write it again; not every store keeps a file from sight until it is whole, so it is looked at more than once."""
    for _ in range(_LOOKS):
        try:
            entries = parsed(there.read(name))
            claim: _Claim = checked(entries, _Claim)
            return Claim(name, claim.state, checked(entries, Process), claim.since, claim.fencing_token)
        except FileNotFoundError:
            return None
        except ValueError:
            sleep(_WRITING_S)
    return Claim(name, "driving", Process(0, "an unknown host"), "an unknown time")


def is_driven(run: Storage) -> bool | None:
    """Whether somebody drives a run, as far as it can be told without writing: by this machine's clock. None where
    nobody ever claimed it."""
    claims = claims_in(run)
    if not claims:
        return None
    files = {} if all(claim.driver.is_visible() for claim in claims) else (run / FOLDER).files()
    return any(claim.is_alive(files, time()) for claim in claims)


class Lease:
    """The right to drive a run or a sweep, for as long as the block lasts and the process lives. Driver.

    Each driver puts a claim of its own beside the others', and drives only once it has listed them and no other is left
    whose driver lives. Of two that ask at once, the later to list sees the other's claim, whatever the clocks say: so a
    store needs nothing but listings that show what was written before. It gives way to one that drives, and to one that
    asks with a lesser name; of one with a greater name it waits for the same. What a dead driver has left hinders
    nobody, and who comes after it is found by asking too. A driver that was silent for so long that it was taken for
    dead finds the claim of a later fencing_token, and raises LeaseLost before it writes.

    Entering raises UsageError where somebody else drives, or the storage refuses; `force_lease` says that drivers which
    cannot be seen from here are gone.
    """

    def __init__(self, run: Storage, *, force_lease: bool = False) -> None:
        self._run, self._there, self._force_lease = run, run / FOLDER, force_lease
        self.name = f"{secrets.token_hex(8)}.json"
        self._claim = Claim(self.name, "asking", Process.this(), strftime("%Y-%m-%dT%H:%M:%SZ", gmtime()))
        self._lost: str | None = None
        self._lock, self._left = Lock(), Event()

    def __enter__(self) -> Self:
        _own[self.name] = self
        try:
            self._take()
            self._run.delete_leftovers(is_pid_alive)
        except BaseException as error:
            with suppress(HookyardError, OSError):
                self._there.delete(self.name)
            del _own[self.name]
            if isinstance(error, StorageError):
                raise UsageError(f"{error}. Nothing was started.") from error
            raise
        Thread(target=self._send_heartbeats, name="lease-heartbeat", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        with self._lock, suppress(HookyardError, OSError):
            if not self._lost:
                self._write("over")
        del _own[self.name]

    def drives(self, path: str) -> bool:
        """Whether what lies at a path is driven by this: the run, or a trial of the sweep."""
        return self._claim.state == "driving" and f"{path}/".startswith(f"{self._run.path}/")

    def check(self) -> None:
        """Raises LeaseLost where it was found that another driver has the run. Asks nobody."""
        if self._lost:
            raise LeaseLost(f"{self._lost}. This driver ends, and writes nothing more there")

    def renew(self) -> None:
        """Gives a heartbeat; raises LeaseLost where another driver has the run by now."""
        with self._lock:
            if not self._lost and not self._left.is_set():
                self._lost = self._loss({claim.name: claim for claim in claims_in(self._run)})
                if self._lost is None:
                    self._write("driving")
                else:
                    self._there.delete(self.name)
        self.check()

    def _loss(self, claims: Mapping[str, Claim]) -> str | None:
        """Why the run is no longer this driver's, by the claims that there are."""
        last = max(claims.values(), key=lambda claim: claim.rank, default=self._claim)
        if last.rank > self._claim.rank:
            return (
                f"{self._run} was taken over by {last.driver} at {last.since}, as this driver had given no heartbeat"
                f" for {LEASE_TTL_S:g} s or was said to be gone"
            )
        return (
            None
            if self.name in claims
            else f"{self._run} was removed, or what says who drives it ({self._there}/{self.name})"
        )

    def _send_heartbeats(self) -> None:
        while not self._left.wait(HEARTBEAT_S):
            try:
                self.renew()
            except LeaseLost:
                return
            except (HookyardError, OSError):
                continue  # whoever would take the run over does not reach the storage either

    def _write(self, state: State, fencing_token: int | None = None) -> None:
        claim = self._claim = replace(self._claim, state=state)
        if fencing_token is not None:
            claim = self._claim = replace(claim, fencing_token=fencing_token)
        entries = {
            "state": state,
            "fencing_token": claim.fencing_token,
            "since": claim.since,
            **asdict(claim.driver),
        }
        self._there.write(self.name, json.dumps(entries, indent=1))

    def _take(self) -> None:
        """Asks until nobody else is left."""
        gone = {claim.name for claim in claims_in(self._run) if self._force_lease and not claim.driver.is_visible()}
        others, living = self._ask(gone)
        while living:
            if rival := next((claim for claim in living if claim.state == "driving" or claim.name < self.name), None):
                raise UsageError(self._refusal(rival))
            sleep(_WAIT_S)
            others, living = self._ask(gone)
        self._write("driving", max((claim.fencing_token for claim in others), default=0) + 1)
        for claim in others:
            self._there.delete(claim.name)

    def _ask(self, gone: Container[str]) -> tuple[list[Claim], list[Claim]]:
        """Writes the own claim; gives all others, and those of them that stand against it."""
        self._write("asking")
        others = [claim for claim in claims_in(self._run) if claim.name != self.name]
        # Read after they were opened, with which NFS looks again.
        files = {} if all(claim.driver.is_visible() for claim in others) else self._there.files()
        now = files[self.name].modified if self.name in files else None
        return others, [claim for claim in others if claim.name not in gone and claim.is_alive(files, now)]

    def _refusal(self, rival: Claim) -> str:
        if rival.state == "asking":
            return f"{self._run} was taken up by {rival.driver} at the same moment, and that one goes on"
        if rival.driver.is_visible():
            return f"{self._run} is still running (process {rival.driver.pid}, since {rival.since}); end that first"
        return (
            f"{self._run} is run by {rival.driver} since {rival.since}, and whether that still lives cannot be seen"
            f" from here: it counts as gone {LEASE_TTL_S:g} s after its last heartbeat. End it there, or wait; where it"
            f" is gone for certain: hookyard resume {shlex.quote(str(self._run))} --force-lease"
        )


def renew_lease(path: str) -> None:
    """Raises LeaseLost where this process drove the run at a path, or the sweep around it, and another one does by
    now."""
    for lease in [*_own.values()]:
        if lease.drives(path):
            lease.renew()
