"""The task: model, data, loss and metrics of an experiment."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.batch_size import count_samples
from orchestrator.errors import ConfigError, TaskError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset, Sampler

    from hooks.state import State
    from orchestrator.training_session import TrainingSession


class Task(ABC):
    """The model, data, loss and metrics of an experiment. Used in workers.

    A task is a dataclass: its fields are its parameters in YAML (`task_args`), and a sweep may vary
    them. A task must define `model`, `data` and either `loss` or `turns`; or only `train`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Implement the abstract methods that a task with `turns` or with its own loop does not
        need."""
        super().__init_subclass__(**options)
        if has_custom_loop(cls):
            for name in ("model", "data", "loss"):
                if getattr(cls, name) is getattr(Task, name):
                    setattr(cls, name, _make_missing_method(name))
        if has_turns(cls) and cls.loss is Task.loss:
            cls.loss = missing_loss  # type: ignore[method-assign]  # so that the class is not abstract

    @property
    def progress(self) -> State:
        """The loop's state, to be read in methods such as `loss`: `self.progress.epoch`, `step`,
        `iteration`, `phase`, `info` and so on. Counters include only completed steps. Outside a
        loop, it is the initial state of a run. Raises TaskError in a loader process."""
        from torch.utils.data import get_worker_info

        if get_worker_info():
            raise TaskError(
                "a loader process works ahead of the loop and does not know its progress; give the dataset set_epoch(),"
                " or set loader.num_workers to 0"
            )
        if "_progress" not in vars(self):
            from hooks.state import State

            vars(self)["_progress"] = State()
        state: State = vars(self)["_progress"]
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without `progress`, for copies and other processes."""
        return {name: value for name, value in vars(self).items() if name != "_progress"}

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the model; every rank does so with the same seed."""

    @abstractmethod
    def data(self) -> Mapping[str, Dataset[Any] | Iterable[Any]]:
        """Return the datasets: `train`, and `val` and `test` if any. Each is map-style, iterable,
        or a loader with `state_dict` and `load_state_dict`. The loop calls it again for a hook that
        reads a stream of its own.

        Before each call, on each rank, all generators are seeded with the experiment's `seed`,
        which `torch.initial_seed()` returns. So a random split is the same everywhere, and after a
        resume."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that this rank's task carries from batch to batch, such as a recurrent
        hidden state. It is saved in each checkpoint: tensors, numbers, text, and containers of
        these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` from a checkpoint, if it was not empty. Tensors are on the CPU."""
        raise NotImplementedError(
            f"{type(self).__name__} has state_dict() and no load_state_dict()"
        )

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor | Mapping[str, Tensor] | None:
        """Return the mean loss over the batch's samples, a scalar; or a mapping of such terms,
        whose sum is trained. Each term has a column and a mean. A task with `turns` uses the loss
        only in val and test.

        In val and test it may return None, for models such as detectors that compute a loss only in
        training."""

    def turns(
        self, model: nn.Module, batch: Any
    ) -> Iterator[tuple[str, Tensor | Mapping[str, Tensor]]]:
        """Train several optimizers: yield the name and loss of each, in the order of their turns.
        Code after a `yield` sees the parameters after that turn's step. Every rank must take the
        same turns."""
        raise NotImplementedError

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        """Train in a custom loop: a generator that yields reports; the session records rows and
        saves state. Parameters after `session` are keys of the experiment that it reads:
        `batch_size: int = 32`."""
        raise NotImplementedError

    def parameters(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """Return the parameters of several optimizers by name, unless the experiment file has
        patterns for them."""
        return {}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the model on a batch. You may call its submodules one by one, except with
        `strategy: fsdp`."""
        return model(batch[0])

    def metrics(self, output: Any, batch: Any) -> Mapping[str, Tensor]:
        """Return one value per sample for each metric, shape (B,). The loop averages over all
        samples of all ranks."""
        return {}

    def meters(self) -> Mapping[str, Any]:
        """Return torchmetrics objects by name, for metrics that are not means over samples. In val
        and test, the loop calls `update(output, target(batch))`, and at the end `compute()`: a
        number, a vector, or a mapping of these."""
        return {}

    def target(self, batch: Any) -> Any:
        """Return the target that meters compare with the output."""
        return batch[1]

    def batch_size(self, batch: Any) -> int:
        """Return the number of samples over which `loss` is the mean, and so its weight in the mean
        of the phase.

        By default, this is the first dimension of the batch's first tensor, in nested containers
        the first one depth first. Override it if a sample is not a row but, for example, a
        character of a padded batch; throughput and `samples` then count these."""
        if type(batch) in (tuple, list):
            first = batch[0] if batch else None
        elif type(batch) is dict:
            first = next(iter(batch.values()), None)
        elif hasattr(batch, "shape") and not isinstance(batch, Mapping):
            raise TaskError(
                "the batch is a single tensor; let data() return tuples, or define batch_size() and forward()"
            )
        else:
            first = None
        try:
            # Most batches begin with a tensor.
            return first.shape[0]  # type: ignore[union-attr,no-any-return]
        except (AttributeError, IndexError, RuntimeError):
            is_stacked = type(self).collate is Task.collate and type(self).loader is Task.loader
            return count_samples(batch, is_stacked=is_stacked)

    def weight(self, batch: Any) -> float | Tensor:
        """Return how much the batch's loss counts: usually the number of tokens or samples over
        which it is a mean, without padding. Micro-batches of a step and ranks then train like one
        large batch, and means of the loss are weighted by it. The batch is on the CPU.

        Without this method, micro-batches and ranks count alike, as in DDP, and means are weighted
        by `batch_size`."""
        raise NotImplementedError

    def sampler(
        self, dataset: Dataset[Any], phase: str
    ) -> Sampler[int] | Sequence[float] | Tensor | None:
        """Return the order of a map-style dataset for all ranks together: a torch Sampler of
        indices, or a weight for each sample. With weights, an epoch draws as many samples as the
        dataset has, with replacement. None means each sample once, shuffled in train.

        The loop calls this once, and iterates over the sampler in each epoch, with all generators
        seeded for it."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Collate samples into a batch."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Build an optimizer that YAML cannot describe. Parameters after `model` are arguments of
        `optimizer` in YAML, where a `type` replaces this optimizer. The loop calls it again if an
        argument changes during training."""
        return None

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Build a scheduler that YAML cannot describe, like `optimizer`; return None for no
        scheduler."""
        return None

    def loader(
        self,
        dataset: Dataset[Any],
        batches: Sampler[list[int]] | None,
        phase: str,
        options: dict[str, Any],
    ) -> Iterable[Any]:
        """Return the loader of a phase; `batches` yields this rank's lists of indices. For a
        stream, `batches` is None, `dataset` is this rank's share, and the loader must have
        `state_dict` and `load_state_dict`."""
        from torch.utils.data import DataLoader, default_collate

        # The import in `collate` would cost time in each batch.
        is_default = getattr(self.collate, "__func__", None) is Task.collate
        collate = default_collate if is_default else self.collate
        if batches is None:
            try:
                from torchdata.stateful_dataloader import StatefulDataLoader
            except ModuleNotFoundError:
                raise ConfigError.at(
                    "task",
                    f"the {phase} data is an iterable dataset, whose loader needs the package "
                    "torchdata",
                    suggestion="pip install 'hookyard[torchdata]'",
                ) from None

            with warnings.catch_warnings():
                # torchdata calls a function that torch has deprecated.
                warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
                loader: Iterable[Any] = StatefulDataLoader(dataset, collate_fn=collate, **options)
            return loader
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)

    def fsdp_units(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the submodules whose parameters `strategy: fsdp` gathers before their call and
        releases after it. Parameters outside them are gathered for the whole forward pass.

        By default the members of every `ModuleList` (a transformer's blocks), else of the outermost
        `Sequential`s."""
        from torch import nn

        def list_members(kind: type[nn.Module]) -> list[nn.Module]:
            members: list[nn.Module] = []
            for container in model.modules():
                if isinstance(container, kind):
                    members += container.children()
            return [member for member in members if type(member) is not kind]

        blocks = list_members(nn.ModuleList)
        if blocks:
            return blocks

        layers = list_members(nn.Sequential)
        nested: set[nn.Module] = set()
        for layer in layers:
            nested |= {*layer.modules()} - {layer}
        return [layer for layer in layers if layer not in nested]

    def required_hooks(self) -> Mapping[str, Any]:
        """Return required hooks by name: as in YAML, a class, or an object. Experiments may
        override their fields."""
        return {}


def has_turns(task: type[Task]) -> bool:
    """Return whether a task trains several optimizers, one after the other in each iteration."""
    return task.turns is not Task.turns


def has_weights(task: type[Task]) -> bool:
    """Return whether a task says how much a loss counts, and has not just a field called
    `weight`."""
    return task.weight is not Task.weight and callable(task.weight)


def has_custom_loop(task: type[Task]) -> bool:
    """Return whether a task has a custom training loop, and not just a field called `train`."""
    return task.train is not Task.train and callable(task.train)


def _make_missing_method(name: str) -> Callable[..., Any]:
    def method(self: Task, *arguments: Any) -> Any:
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} has its own training loop, and no {name}()")

    return method


def missing_loss(self: Task, output: Any, batch: Any) -> Any:
    """Stand in for the `loss` of a task that has only `turns`."""
    raise NotImplementedError


def show_progress(task: Task, state: State) -> None:
    """Set a loop's state as the task's `progress`."""
    vars(task)["_progress"] = state


def hide_progress(task: Task) -> None:
    """Remove `progress`, so the task does not keep the model in memory."""
    vars(task).pop("_progress", None)
