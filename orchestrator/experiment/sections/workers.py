"""The workers: the processes of a run, the resources of each, and how they share the model."""

from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt
from pydantic import Field, model_validator

from hooks.needs import Needs
from orchestrator.experiment.fields.field_errors import make_value_error
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.fields.size import Size
from orchestrator.units import format_count


class Ddp(Model):
    """Options of torch's DistributedDataParallel, with its names."""

    find_unused_parameters: bool = False
    """Searches each forward pass for parameters that the output does not depend on, for models of
    which a batch may leave out layers."""
    static_graph: bool = False
    """Declares that each iteration uses the same parameters, so that torch searches only in the
    first."""
    gradient_as_bucket_view: bool = False
    """Keeps gradients in the communication buckets, which saves their size in memory."""


class Workers(Model):
    """The processes of one run."""

    count: (
        Annotated[int, Ge(1)]
        | Annotated[list[Annotated[int, Ge(1)]], Field(min_length=2, max_length=2)]
    ) = 1
    """Number of ranks that train together. With `[2, 8]`, as many as fit on the cluster: the run
    continues from its last checkpoint with fewer ranks when nodes leave and with more when they
    come."""
    gpu: bool | Annotated[float, Gt(0), Lt(1)] = False
    """Requests a GPU for each rank; for a single rank also a share of one, so that trials share the
    GPU."""
    cpus: Annotated[float, Gt(0)] = 1
    """CPUs that each rank requests from Ray, and threads of torch in it, also with `--local`."""
    memory: Annotated[Size, Ge(1)] | None = None
    """Host memory that each rank requests from Ray, in bytes or as `8 GiB`. Ray counts it but does
    not limit it."""
    accelerator: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Type of GPU, by Ray's name: `H100`."""
    resources: dict[Annotated[str, Field(min_length=1)], Annotated[float, Gt(0)]] = {}  # noqa: RUF012
    """Custom resources that each rank requests from Ray, such as `{spot: 1}`."""
    spares: Annotated[int, Ge(0)] = 0
    """Number of processes that wait, each with a rank's resources, to replace a lost rank; engine
    `gang` only."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Parallelism: each rank has a full copy of the model, or a shard of every parameter (torch's
    fully_shard)."""
    meta_device: Annotated[bool, Needs("workers.strategy", "fsdp")] = False
    """Builds the model on torch's meta device, so that no rank ever holds all of it. Each part's
    `reset_parameters` then sets the values of its shards. Needs `strategy: fsdp`."""
    ddp: Annotated[Ddp, Needs("workers.strategy", "ddp")] = Ddp()
    """Options of DDP (`strategy: ddp`)."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        count = self.count
        if isinstance(count, list) and count[0] >= count[1]:
            raise make_value_error(
                "count", f"must be a number, or [min, max] with min < max, got {count}"
            )
        if isinstance(self.gpu, float) and self.max_count > 1:
            rule = "must be true or false when count is greater than 1"
            got = f"got {self.gpu:g} with count: {count}"
            raise make_value_error("gpu", f"{rule}, {got}; NCCL needs a whole GPU for each rank")
        if self.accelerator and not self.gpu:
            raise make_value_error("accelerator", "has no effect without `gpu: true`")
        reserved = {"CPU", "GPU", "memory"}.intersection(self.resources)
        if reserved:
            raise make_value_error(
                "resources",
                f"cannot hold {' and '.join(sorted(reserved))}; use the keys cpus, gpu and memory",
            )
        return self

    @property
    def min_count(self) -> int:
        return self.count if isinstance(self.count, int) else self.count[0]

    @property
    def max_count(self) -> int:
        return self.count if isinstance(self.count, int) else self.count[1]

    def describe(self, noun: str) -> str:
        """Return the number of workers as text: `1 rank`, `2 to 8 ranks`."""
        text = format_count(self.max_count, noun)
        return text if self.min_count == self.max_count else f"{self.min_count} to {text}"

    @property
    def bundle(self) -> dict[str, float]:
        """Resources that each rank requests, by Ray's names."""
        bundle = {
            "CPU": self.cpus,
            "GPU": float(self.gpu),
            "memory": float(self.memory or 0),
            **self.resources,
        }
        if self.accelerator:
            # Ray's own way to request a node with such a GPU, which any number of ranks may.
            bundle[f"accelerator_type:{self.accelerator}"] = 0.001
        return {name: amount for name, amount in bundle.items() if amount}


def make_rank_count_overrides(count: int) -> dict[str, Any]:
    """Return the values to set for an experiment that continues with another number of ranks."""
    values: dict[str, Any] = {"workers.count": count}
    if count == 1:
        values |= {"workers.strategy": "ddp", "workers.meta_device": False}
    return values
