"""The workers: the processes of a run, what each asks of Ray, and how they share the model."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt
from pydantic import BeforeValidator, Field, model_validator

from orchestrator.config.sections.base import Model

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B")


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"must be bytes, or a size such as 8 GiB or 500 MB, got '{value}'")
    prefix = match[2] or ""
    return int(float(match[1]) * (1024 if prefix.endswith("i") else 1000) ** " KMGT".index(prefix[:1] or " "))


Bytes = Annotated[
    int,
    Ge(1),
    BeforeValidator(_bytes, json_schema_input_type=int | Annotated[str, Field(pattern=rf"^{_SIZE.pattern}$")]),
]
_OF_RAY = frozenset(("CPU", "GPU", "memory"))


class Ddp(Model):
    """Options of torch's DistributedDataParallel, called as there."""

    find_unused_parameters: bool = False
    """Looks in each forward pass which parameters the output depends on, for models of which a batch may leave layers
    out."""
    static_graph: bool = False
    """Says that each iteration uses the same parameters, so that torch looks in the first one alone."""
    gradient_as_bucket_view: bool = False
    """Keeps gradients where they are exchanged, which saves their size in memory."""

    def set_otherwise(self) -> list[str]:
        """The options that are not torch's own."""
        return [name for name, value in self.model_dump().items() if value]


class Workers(Model):
    """The processes of one run."""

    count: Annotated[int, Ge(1)] | Annotated[list[Annotated[int, Ge(1)]], Field(min_length=2, max_length=2)] = 1
    """How many ranks train together. Of `[2, 8]`, as many as the cluster has room for: the run goes on with fewer when
    nodes go, and with more when they come, from its last checkpoint."""
    gpu: bool | Annotated[float, Gt(0), Lt(1)] = False
    """Whether each rank gets a GPU; of a single rank also the share of one, so that trials stand side by side on it."""
    cpus: Annotated[float, Gt(0)] = 1
    """CPUs asked of Ray for each rank, and threads of torch in it, also with `--local`."""
    memory: Bytes | None = None
    """Memory of the host asked of Ray for each rank, in bytes or as `8 GiB`. Ray counts it, and limits nothing."""
    accelerator: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """The kind of GPU, as Ray names it: `H100`."""
    resources: dict[Annotated[str, Field(min_length=1)], Annotated[float, Gt(0)]] = {}  # noqa: RUF012
    """Resources of the cluster's own asked of Ray for each rank."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How ranks share the model: each has all of it, or each has a part of every parameter (torch's fully_shard)."""
    meta_device: bool = False
    """Under fsdp, builds the model without memory for its parameters, so that no rank has it whole; `reset_parameters`
    gives them their values."""
    ddp: Ddp = Ddp()
    """How ranks that have all of it exchange gradients."""

    @model_validator(mode="after")
    def _counts_upwards(self) -> Self:
        if isinstance(self.count, list) and self.min_count >= self.max_count:
            raise ValueError(f"count is one number, or the fewest and the most of them, got {self.count}")
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if isinstance(self.gpu, float) and self.max_count > 1:
            raise ValueError(
                f"a share of a GPU, {self.gpu:g}, is for a single rank, as NCCL takes one rank on each GPU; count is"
                f" {self.count}"
            )
        if self.accelerator and not self.gpu:
            raise ValueError(
                f"accelerator says which GPU, and gpu: false asks for none, got {self.accelerator!r}; write gpu: true"
            )
        if named := _OF_RAY.intersection(self.resources):
            raise ValueError(
                f"resources are a cluster's own; {' and '.join(sorted(named))} have keys of their own: cpus, gpu,"
                " memory"
            )
        return self

    @property
    def min_count(self) -> int:
        """The fewest ranks it trains with."""
        return self.count if isinstance(self.count, int) else self.count[0]

    @property
    def max_count(self) -> int:
        """The most ranks it trains with."""
        return self.count if isinstance(self.count, int) else self.count[1]

    def describe(self, noun: str) -> str:
        """How many there are to be: `1 rank`, `2 to 8 ranks`."""
        number = str(self.max_count) if self.min_count == self.max_count else f"{self.min_count} to {self.max_count}"
        return f"{number} {noun}{'s' if self.max_count > 1 else ''}"

    def bundle(self) -> dict[str, float]:
        """What each rank asks of Ray, as Ray names it."""
        asked = {"CPU": self.cpus, "GPU": float(self.gpu), "memory": float(self.memory or 0), **self.resources}
        # Ray's own way to ask for a node with such a GPU, which any number of ranks may.
        asked |= {f"accelerator_type:{self.accelerator}": 0.001} if self.accelerator else {}
        return {name: amount for name, amount in asked.items() if amount}


def rank_count_overrides(count: int) -> dict[str, Any]:
    """What is laid over an experiment that goes on with another number of ranks: one alone shares nothing out."""
    return {"workers.count": count, **({"workers.strategy": "ddp", "workers.meta_device": False} if count == 1 else {})}
