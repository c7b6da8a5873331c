"""The engine that trains a run, and the cluster that it joins. Used in the driver."""

from dataclasses import dataclass
from typing import Self

from orchestrator.disk.metadata import EngineName, RunMetadata
from orchestrator.engines.ray_connection import choose_address
from orchestrator.errors import UsageError


@dataclass(frozen=True)
class EngineChoice:
    """The engine that trains a run, and the Ray cluster that it joins."""

    name: EngineName
    address: str | None
    """Address of the cluster; None if Ray starts on this machine or is not needed."""

    @classmethod
    def make(cls, name: EngineName | None, address: str | None, *, local: bool) -> Self:
        """Choose the engine, by default `train`, or `in-process` if `local`.

        Raises UsageError if `local` contradicts the name, or an address is given for an engine that
        joins no cluster.
        """
        if local and name not in (None, "in-process"):
            raise UsageError(
                f"`local` means the engine in-process; leave out `local` or the engine {name}"
            )
        if local:
            name = "in-process"
        chosen = name or "train"
        return cls(chosen, choose_address(address, local=chosen == "in-process"))

    @classmethod
    def of_run(cls, metadata: RunMetadata, address: str | None) -> Self:
        """Return the engine that a run has recorded, or the one for a trial of a sweep."""
        is_local_sweep = metadata.engine is None and metadata.local
        return cls.make(metadata.engine, address, local=is_local_sweep)

    @property
    def is_local(self) -> bool:
        """True if the run trains in this process, without Ray."""
        return self.name == "in-process"
