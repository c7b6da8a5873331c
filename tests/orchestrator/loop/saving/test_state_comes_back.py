"""Every optimizer and scheduler of torch goes on from a checkpoint, bit for bit, however often it
is resumed."""

import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler, swa_utils
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.param_scheduler import ParamScheduler
from orchestrator.disk.checkpoints.placeholders import tensors_in
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import RunError
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.construction import find_subclasses
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment

SCHEDULERS = find_subclasses(lr_scheduler, LRScheduler) | find_subclasses(swa_utils, LRScheduler)
STEPS = 5
ARGUMENTS: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda step: 0.9**step},
    "MultiplicativeLR": {"lr_lambda": lambda step: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 4, 4, 6], "gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 20},
    "ExponentialLR": {"gamma": 0.9},
    "ReduceLROnPlateau": {"patience": 0, "threshold": 1e9},
    "SWALR": {"swa_lr": 0.02, "anneal_epochs": 3},
}


@dataclass
class Trained(Points):
    """Points, trained by any class of torch."""

    optimizer_class: Any = torch.optim.SGD
    scheduler_class: Any = None
    dtype: torch.dtype = torch.float32

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).to(
            self.dtype
        )

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0].to(self.dtype))

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return super().loss(output.float(), batch)

    def optimizer(self, model: nn.Module) -> Optimizer:  # type: ignore[override]
        momentum = {"momentum": 0.9} if self.optimizer_class is torch.optim.SGD else {}
        made: Optimizer = self.optimizer_class(model.parameters(), lr=0.05, **momentum)
        if self.optimizer_class is torch.optim.SparseAdam:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_make_sparse)
        return made

    def scheduler(self, optimizer: Optimizer) -> Any:  # type: ignore[override]
        return self.scheduler_class and _scheduler(self.scheduler_class.__name__, optimizer)


def _make_sparse(parameter: Tensor) -> None:
    parameter.grad = parameter.grad.to_sparse()  # type: ignore[union-attr]


def _scheduler(name: str, optimizer: Optimizer) -> Any:
    if name == "SequentialLR":
        parts = [_scheduler(part, optimizer) for part in ("StepLR", "MultiStepLR")]
        return SCHEDULERS[name](optimizer, parts, milestones=[2])  # type: ignore[call-arg]
    if name == "ChainedScheduler":
        return SCHEDULERS[name](
            [_scheduler(part, optimizer) for part in ("MultiStepLR", "ExponentialLR")]
        )  # type: ignore[arg-type]
    return SCHEDULERS[name](optimizer, **ARGUMENTS.get(name, {}))


def run_loop(root: Path, task: Trained, *, resumed: bool) -> list[tuple[Any, ...]]:
    """The rates, the optimizer's and the scheduler's state after each step; resumed at each where
    it is to be."""
    kept: list[tuple[Any, ...]] = []
    while len(kept) < STEPS:
        torch.manual_seed(7)
        by_metric = task.scheduler_class is ReduceLROnPlateau
        hooks = {
            "scheduler": ParamScheduler(monitor="val/loss")
            if by_metric
            else ParamScheduler(every=Interval(1, "steps")),
            "checkpoint": Checkpoint(),
        }
        store = CheckpointStore(Storage(root))
        own = Component(type="task")
        fields = {
            "steps": STEPS,
            "validate_every": Interval(1, "steps"),
            "batch_size": 4,
            "optimizer": own,
        }
        fields |= {"scheduler": own} if task.scheduler_class else {}
        loop = Loop(task, experiment(**fields), hooks, RunContext(store=store))  # type: ignore[arg-type]
        if kept:
            loop.restore(store.find_latest().name or "")
        reports = loop.run()
        for _ in reports:
            kept.append(
                plain(
                    (
                        [*loop.state.module.parameters()],
                        loop.state.optimizer.state_dict(),  # type: ignore[union-attr]
                        loop.state.scheduler and loop.state.scheduler.state_dict(),
                    )
                )
            )
            if resumed:
                loop.save()
                reports.close()
    return kept


def plain(value: Any) -> Any:
    """What a value is, with the types of all that is in it."""
    if isinstance(value, Tensor):
        return value.dtype, value.stride(), value.tolist()
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return type(value), factory, [(key, plain(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [plain(inner) for inner in value]
    return type(value), value


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    task = Trained(scheduler_class=SCHEDULERS[name], train=12, val=4)
    assert run_loop(tmp_path / "resumed", task, resumed=True) == run_loop(
        tmp_path / "whole", task, resumed=False
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    """In bf16, as loading gives the optimizer's tensors the dtype of the parameters."""
    task = Trained(optimizer_class=OPTIMIZERS[name], train=12, val=4, dtype=torch.bfloat16)
    assert run_loop(tmp_path / "resumed", task, resumed=True) == run_loop(
        tmp_path / "whole", task, resumed=False
    )


# What a hook keeps


def kept() -> dict[str, Any]:
    """One of each kind, filled and empty, and each within others."""
    whole = torch.arange(6.0)
    values: dict[str, Any] = {
        "counter": Counter({2: 1, 4: 3}),
        "ordered": OrderedDict(b=1, a=2),
        "defaultdict": defaultdict(list, a=[1]),
        "without a factory": defaultdict(None, a=1),
        "deque": deque([1, 2], maxlen=3),
        "set": {1, "a"},
        "frozenset": frozenset({1, 2}),
        "tuple": (1, (2, [3])),
        "size": torch.Size([2, 3]),
        "scalar": np.float64(0.1),
        "half": np.float16(0.5),
        "count": np.int32(7),
        "bytes": bytearray(b"a"),
        "complex": 1 + 2j,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "layout": torch.strided,
        "whole": whole,
        "same": whole,
        "view": whole[2:4],
        "transposed": torch.arange(6).view(2, 3).t(),
        "expanded": torch.ones(1).expand(3),
        "conjugate": torch.ones(2, dtype=torch.complex64).mul(1j).conj(),
        "trained": torch.ones(2, requires_grad=True),
        "parameter": nn.Parameter(torch.ones(2), requires_grad=False),
        "no tensor": torch.empty(0, 3).t(),
        "half tensor": torch.ones(2, dtype=torch.bfloat16),
        "number": torch.tensor(True),
    }
    empty = {
        f"empty {kind.__name__}": kind()
        for kind in (dict, list, tuple, set, Counter, OrderedDict, deque)
    }
    values |= empty | {"empty defaultdict": defaultdict(int)}
    return {
        **values,
        "inner": Counter(a=deque([Counter(b=defaultdict(tuple, c=OrderedDict(values)))])),
    }


class Keeps(Hook):
    """Keeps one of each kind, in all three places; what it keeps is changed as soon as training
    goes on."""

    def __init__(self) -> None:
        self.kept = kept()
        self.found = dict[str, Any]()

    def state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found["shared"] = state

    def rank_state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self.found["of rank"] = state

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        checkpoint["keeps"] = self.kept

    def on_load(self, state: State, checkpoint: dict[str, Any]) -> None:
        self.found["own"] = checkpoint["keeps"]


def storages(tree: Any) -> list[int]:
    """For each tensor the place of the first that is in the same memory."""
    pointers = [tensor.untyped_storage().data_ptr() for tensor in tensors_in(tree)]
    return [pointers.index(pointer) for pointer in pointers]


def comes_back(root: Path, background: bool, world: World, **fields: Any) -> None:
    for attempt in ("saved", "resumed"):
        keeps = Keeps()
        hooks = {"checkpoint": Checkpoint(background=background), "keeps": keeps}
        store = CheckpointStore(Storage(root), is_master=world.is_master)
        loop = Loop(
            Points(train=12),
            experiment(steps=1, **fields),
            hooks,
            RunContext(store=store, world=world),
        )
        if attempt == "saved":
            list(loop.run())
        else:
            loop.restore(store.find_latest().name or "")
    for place in ("shared", "of rank", "own"):
        found = keeps.found[place]
        assert plain(found) == plain(kept()), place
        assert storages(found) == storages(kept()), place
        for (name, value), other in zip(kept().items(), found.values(), strict=True):
            if isinstance(value, Tensor):
                assert (type(other), other.requires_grad) == (type(value), value.requires_grad), (
                    name
                )


@pytest.mark.parametrize("background", [False, True])
def test_each_kind_of_value_is_restored(tmp_path: Path, background: bool) -> None:
    comes_back(tmp_path, background, World())


def _sharded(rank: int, world_size: int, root: str) -> None:
    for background in (False, True):
        fields = {"workers": Workers(count=2, strategy="fsdp")}
        comes_back(Path(root, str(background)), background, World(rank, world_size, rank), **fields)


def test_each_kind_of_value_is_restored_on_sharded_ranks(tmp_path: Path) -> None:
    on_ranks(_sharded, 2, str(tmp_path))


class Point(NamedTuple):
    x: int


class Numbers(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ([Counter(a=Point(1))], "['value'][0]['a']", f"{__name__}.Point"),
        (torch.ones(2).max(0), "['value']", "torch.return_types.max"),
        (Numbers(a=1), "['value']", f"{__name__}.Numbers"),
        (defaultdict(lambda: 1), "['value'][0]", "builtins.function"),
        (deque([range(3)]), "['value'][0][0]", "builtins.range"),
        (np.ones(2), "['value']", "numpy.ndarray"),
        ({Point(1): 2}, "the key Point(x=1) of {}['value']", f"{__name__}.Point"),
    ],
)
def test_value_that_cannot_be_loaded_is_refused_when_saved(
    tmp_path: Path, value: Any, place: str, kind: str
) -> None:
    for method in ("state_dict", "rank_state_dict"):
        keeps = Hook()
        setattr(keeps, method, lambda: {"value": value})
        hooks = {"checkpoint": Checkpoint(), "keeps": keeps}
        loop = Loop(
            Points(train=12),
            experiment(steps=1),
            hooks,
            RunContext(store=CheckpointStore(Storage(tmp_path))),
        )
        said = place.format("hooks['keeps']") if "{}" in place else f"hooks['keeps']{place}"
        with pytest.raises(RunError, match=re.escape(f"a checkpoint cannot hold {said}, a {kind}")):
            list(loop.run())
