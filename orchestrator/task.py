"""The task: model, data, loss and metrics of an experiment."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset, Sampler

    from hooks.state import State
    from orchestrator.training_session import TrainingSession


class Task(ABC):
    """The model, data, loss and metrics of an experiment. Runs in the worker process.

    A task is a dataclass: its fields are its parameters in YAML (`task_args`), and a sweep may vary them. A task must
    define `model`, `data` and `loss` or `turns`, or `train` alone.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Implement the abstract methods that a task with `turns` or with its own loop does not need."""
        super().__init_subclass__(**options)
        if has_custom_loop(cls):
            for name in ("model", "data", "loss"):
                if getattr(cls, name) is getattr(Task, name):
                    setattr(cls, name, _missing_method(name))
        if has_turns(cls) and cls.loss is Task.loss:
            cls.loss = without_loss  # type: ignore[method-assign]  # so that the class is not abstract

    @property
    def progress(self) -> State:
        """The loop's state, to read in `loss`, `metrics`, `turns` and other methods: `self.progress.epoch`, `step`,
        `iteration`, `phase`, `info` and so on. Counters include completed steps only. Without a loop, the state of
        a run that has not begun."""
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
        """Build the model. Every rank builds it with the same seed."""

    @abstractmethod
    def data(self) -> Mapping[str, Dataset[Any] | Iterable[Any]]:
        """Return the datasets: `train`, and `val` and `test` if any. Each is map-style, iterable, or a loader with
        `state_dict` and `load_state_dict`. Called again if a hook reads a stream beside the training."""

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's task carries from batch to batch, such as the hidden state of a recurrent model.
        Each checkpoint holds it: tensors, numbers, text, and containers of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` from a checkpoint, if it was not empty. Tensors are on the CPU."""
        raise NotImplementedError(f"{type(self).__name__} has state_dict() and no load_state_dict()")

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor | Mapping[str, Tensor]:
        """Return the mean over the batch's samples, a scalar; or a mapping of such parts, whose sum is trained. Each
        part is a column and a mean. With `turns` the loss is for val and test alone."""

    def turns(self, model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor | Mapping[str, Tensor]]]:
        """Train several optimizers: yield the name of each and its loss, in the order of their turns. Code after a
        `yield` sees the parameters after that turn's step. Every rank takes the same turns."""
        raise NotImplementedError

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        """Train in your own loop: a generator that yields reports, and records rows and saves state by the session.
        Parameters after `session` are keys of the experiment that it reads: `batch_size: int = 32`."""
        raise NotImplementedError

    def parameters(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """Return the parameters of each of several optimizers, by its name, unless the file has patterns for them."""
        return {}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the model on a batch. You may call its submodules one by one, except with `strategy: fsdp`."""
        return model(batch[0])

    def metrics(self, output: Any, batch: Any) -> Mapping[str, Tensor]:
        """Return one value per sample for each metric, shape (B,). The loop averages over all samples of all ranks."""
        return {}

    def meters(self) -> Mapping[str, Any]:
        """Return torchmetrics objects, for metrics that are not means over samples. In val and test the loop calls
        `update(output, target(batch))`, and at the end of the phase `compute()`, for one number, a vector, or a mapping
        of these."""
        return {}

    def target(self, batch: Any) -> Any:
        """Return the meters' target for the output."""
        return batch[1]

    def batch_size(self, batch: Any) -> int:
        """Return the number of samples that `loss` is the mean of, and so its weight in the mean of the phase.

        By default the length of the batch's first part. Override it if samples are not its rows, but characters of a
        padded batch, say: throughput and `samples` then count these too."""
        first = batch[0] if isinstance(batch, (list, tuple)) else next(iter(batch.values()))
        # A tensor's own len() is Python that takes ten times as long.
        return first.shape[0] if hasattr(first, "shape") else len(first)

    def sampler(self, dataset: Dataset[Any], phase: str) -> Sampler[int] | Sequence[float] | Tensor | None:
        """Return the order of a map-style dataset for all ranks together: a torch Sampler of indices, or a weight for
        each sample. Weights draw as many samples as there are, with replacement. None is each sample once, shuffled in
        train.

        Called once. The loop iterates over a sampler in each epoch, with all generators seeded for that epoch."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Collate samples into a batch."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Build an optimizer that YAML cannot describe. Parameters after `model` are arguments of `optimizer` in YAML,
        where a `type` replaces this optimizer. The loop calls it again if an argument changes during training."""
        return None

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Build a scheduler that YAML cannot describe, in the same way; return None for no scheduler."""
        return None

    def loader(
        self, dataset: Dataset[Any], batches: Sampler[list[int]] | None, phase: str, options: dict[str, Any]
    ) -> Iterable[Any]:
        """Return the loader of a phase; `batches` yields this rank's lists of indices. For a stream it is None:
        `dataset` is this rank's share, and the loader must have `state_dict` and `load_state_dict`."""
        from torch.utils.data import DataLoader

        if batches is None:
            from torchdata.stateful_dataloader import StatefulDataLoader

            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "'set_vital' is deprecated", UserWarning
                )  # torch's, of what torchdata calls
                loader: Iterable[Any] = StatefulDataLoader(dataset, collate_fn=self.collate, **options)
            return loader
        return DataLoader(dataset, batch_sampler=batches, collate_fn=self.collate, **options)

    def fsdp_units(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the submodules whose parameters `strategy: fsdp` gathers for their call and releases after it.
        Parameters outside them are gathered for the whole forward pass.

        By default the members of every `ModuleList` (a transformer's blocks), or, if there is none, of the outermost
        `Sequential`s."""
        from torch import nn

        def members(kind: type[nn.Module]) -> list[nn.Module]:
            containers = [module for module in model.modules() if isinstance(module, kind)]
            return [member for container in containers for member in container.children() if type(member) is not kind]

        of_sequentials = members(nn.Sequential)
        within = {inner for member in of_sequentials for inner in member.modules() if inner is not member}
        return members(nn.ModuleList) or [member for member in of_sequentials if member not in within]

    def required_hooks(self) -> Mapping[str, Any]:
        """Return hooks that this task needs, by name: as in YAML, a class, or an object. The experiment may override
        fields."""
        return {}


def has_turns(task: type[Task]) -> bool:
    """Return whether a task trains several optimizers, one after the other in each iteration."""
    return task.turns is not Task.turns


def has_custom_loop(task: type[Task]) -> bool:
    """Return whether a task has its own training loop. A field may be called `train` too."""
    return task.train is not Task.train and callable(task.train)


def _missing_method(name: str) -> Callable[..., Any]:
    def method(self: Task, *arguments: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has its own training loop, and no {name}()")

    return method


def without_loss(self: Task, output: Any, batch: Any) -> Any:
    """Replace the `loss` of a task with `turns` that has none."""
    raise NotImplementedError


def show_progress(task: Task, state: State) -> None:
    """Set a loop's state as the task's `progress`."""
    vars(task)["_progress"] = state


def hide_progress(task: Task) -> None:
    """Remove `progress`, so that the task holds no reference to the model."""
    vars(task).pop("_progress", None)
