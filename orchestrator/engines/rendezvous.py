"""The store in which the ranks of an attempt form their process group, and in which the gang
announces the attempt's end."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import ray
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

_CONNECTION_TIMEOUT = timedelta(minutes=30)
_ATTEMPT_TIMEOUT = timedelta(days=20)
"""Limit of an attempt; torch takes milliseconds as an int32."""

_END = "end"
"""Key of an attempt's end in its store."""


class AttemptEnd(StrEnum):
    """Outcome of an attempt."""

    COMPLETED = "completed"
    """The gang ends the attempt between two reports; no rank has failed."""
    RANK_FAILED = "rank failed"
    """A rank failed on its own, so all other failures are consequences."""
    PEER_LOST = "peer lost"
    """The failed rank may only have lost a peer."""


@dataclass(frozen=True)
class Rendezvous:
    """Address of the store of an attempt. Used on its ranks."""

    host: str
    port: int
    attempt: int

    def connect(self) -> PrefixStore:
        """Return the attempt's part of the store."""
        server = TCPStore(self.host, self.port, is_master=False, timeout=_CONNECTION_TIMEOUT)
        return _get_part(server, self.attempt)

    def wait_for_end(self) -> AttemptEnd:
        """Wait until the gang announces the end of the attempt. Raises RuntimeError if its process
        died."""
        store = self.connect()
        store.wait([_END], _ATTEMPT_TIMEOUT)
        return AttemptEnd(store.get(_END).decode())


class RendezvousServer:
    """The store of all attempts of a gang, in the gang's process, because that outlives any rank."""

    def __init__(self) -> None:
        self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._attempts = 0
        self._attempt_store: PrefixStore | None = None
        """The store of the attempt, until its end is announced."""

    def begin_attempt(self) -> Rendezvous:
        """Return where the ranks of the next attempt meet."""
        self._attempts += 1
        self._attempt_store = _get_part(self._server, self._attempts)
        return Rendezvous(ray.util.get_node_ip_address(), self._server.port, self._attempts)

    def end_attempt(self, end: AttemptEnd) -> None:
        """Announce the end of the attempt to its ranks; only the first announcement counts. Any
        thread may call it."""
        store = self._attempt_store
        self._attempt_store = None
        if store is not None:
            store.set(_END, end)


def _get_part(server: TCPStore, attempt: int) -> PrefixStore:
    return PrefixStore(f"attempt-{attempt}", server)
