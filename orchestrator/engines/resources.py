"""Resources of a cluster or a machine, or those that a run needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.experiment.sections.workers import Workers
from orchestrator.units import format_bytes, format_count


class Shortage(NamedTuple):
    """A resource that is missing, as texts."""

    needed: str
    present: str


@dataclass(frozen=True)
class Resources:
    """Resources of a cluster or a machine, or those that a run needs."""

    amounts: Mapping[str, float]
    """Amounts by Ray's names: `CPU`, `GPU`, `memory` in bytes, kinds of GPU, and a cluster's custom
    resources."""

    @classmethod
    def required_by(cls, workers: Workers) -> "Resources":
        """Return the minimum that a run needs."""
        processes = workers.min_count + workers.spares
        return cls({name: amount * processes for name, amount in workers.bundle.items()})

    def find_shortages(self, present: "Resources") -> list[Shortage]:
        """Return the resources that `present` lacks."""
        shortages = []
        for name, needed in self.amounts.items():
            available = present.amounts.get(name, 0)
            # Ray counts in units of 0.0001, and sums of fractions are not exact.
            if round(needed - available, 4) > 0:
                has = format_amount(name, available) if available else "none"
                shortages.append(Shortage(format_amount(name, needed), has))
        return shortages

    def __str__(self) -> str:
        amounts = {"CPU": 0, **self.amounts}
        *texts, last = (
            format_amount(name, amount)
            for name, amount in amounts.items()
            if amount or name == "CPU"
        )
        if not texts:
            return last
        return f"{', '.join(texts)} and {last}"


def format_amount(resource: str, amount: float) -> str:
    """Format an amount of one of Ray's resources: `2 CPUs`, `8 GiB of memory`."""
    if resource == "memory":
        return f"{format_bytes(amount)} of memory"
    kind = resource.removeprefix("accelerator_type:")
    if kind != resource:
        return f"GPUs of the kind {kind}"
    return format_count(amount, resource)
