"""The task: what an experiment brings."""

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
    """What an experiment brings: model, data, loss and metrics. Runs in the worker process.

    A task is a dataclass: its fields are its parameters in YAML (`task_args`), and a sweep may vary them. Only
    `model`, `data` and `loss`, or `turns`, must be written; or `train` alone.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """A task that takes turns needs no `loss`, unless it brings data of val or test; one that trains by itself
        needs nothing else."""
        super().__init_subclass__(**options)
        if trains_itself(cls):
            for name in ("model", "data", "loss"):
                if getattr(cls, name) is getattr(Task, name):
                    setattr(cls, name, _unwritten(name))
        if takes_turns(cls) and cls.loss is Task.loss:
            cls.loss = without_loss  # type: ignore[method-assign]  # so that it is no abstract class

    @property
    def progress(self) -> State:
        """How far the run is, to read in `loss`, `metrics`, `turns` and the others: `self.progress.epoch`, `step`,
        `iteration`, `phase`, `info` and the rest of the loop's state, whose counters say what has been completed. Where
        no loop runs the task, that of a run which has not begun."""
        if "_progress" not in vars(self):
            from hooks.state import State

            vars(self)["_progress"] = State()
        state: State = vars(self)["_progress"]
        return state

    def __getstate__(self) -> dict[str, Any]:
        """What another process is sent, or a copy has: how far this run is stays here."""
        return {name: value for name, value in vars(self).items() if name != "_progress"}

    @abstractmethod
    def model(self) -> nn.Module:
        """Builds the model; every rank builds it with the same seed."""

    @abstractmethod
    def data(self) -> Mapping[str, Dataset[Any] | Iterable[Any]]:
        """The datasets: `train`, and `val` and `test` where there are. Each is map-style, or iterable, or a loader that
        keeps its place (`state_dict` and `load_state_dict`). Asked again where a hook looks at a stream beside the
        training."""

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's task carries from batch to batch, such as the hidden state of a recurrent model.
        Each checkpoint holds it: tensors, numbers, text, and containers of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave when the checkpoint was made; called where it gave something. Tensors are on
        the CPU."""
        raise NotImplementedError(f"{type(self).__name__} has state_dict() and no load_state_dict()")

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor | Mapping[str, Tensor]:
        """A scalar: the mean over the batch's samples; or a mapping of such, whose sum is trained, each a column and a
        mean too. Of a task that takes turns it is for val and test alone."""

    def turns(self, model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor | Mapping[str, Tensor]]]:
        """For several optimizers: yields the name of one and the loss that its parameters are trained with, in the
        order in which they take their turns. What comes after a `yield` sees the parameters as that turn's step left
        them. Every rank takes the same turns."""
        raise NotImplementedError

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        """A loop of one's own in place of the hooked one: a generator that records rows, keeps parts in checkpoints and
        yields reports, by the session it is given. What it declares after `session` are keys of the experiment that it
        reads: `batch_size: int = 32`."""
        raise NotImplementedError

    def parameters(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """For several optimizers: what each trains, by its name, where patterns in the file do not say it."""
        return {}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Runs the model on a batch. `model` is the task's own, whose parts may be called one by one; with `strategy:
        fsdp` it is called as a whole."""
        return model(batch[0])

    def metrics(self, output: Any, batch: Any) -> Mapping[str, Tensor]:
        """One value per sample for each metric, shape (B,); the loop takes the mean over all samples of all ranks."""
        return {}

    def meters(self) -> Mapping[str, Any]:
        """Metrics that are no mean over samples: torchmetrics objects. In val and test `update(output, target)` is
        called with `target(batch)`, `compute()` at the end of the phase: one number, a vector, or a mapping of these by
        name."""
        return {}

    def target(self, batch: Any) -> Any:
        """What the meters compare the output with."""
        return batch[1]

    def batch_size(self, batch: Any) -> int:
        """How many samples a batch holds: what `loss` is the mean of, and so its weight in the mean of the phase.

        Here the length of the batch's first part. Where samples are not its rows (the characters of a padded batch,
        say), count those: throughput and `samples` then count them too."""
        first = batch[0] if isinstance(batch, (list, tuple)) else next(iter(batch.values()))
        # A tensor's own len() is Python that takes ten times as long.
        return first.shape[0] if hasattr(first, "shape") else len(first)

    def sampler(self, dataset: Dataset[Any], phase: str) -> Sampler[int] | Sequence[float] | Tensor | None:
        """The order in which a phase goes through its map-style dataset, the whole of it for all ranks: a torch Sampler
        of indices, or a weight for each sample, by which as many as there are are drawn with replacement. None is each
        sample once, shuffled in train.

        Asked once; a sampler is gone through anew in each epoch, with all generators at the epoch's own number."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Makes a batch of samples."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Makes the optimizer where YAML cannot say it; what is declared after `model` YAML may say, as arguments of
        `optimizer`. A `type` there takes another optimizer instead. Called again, with other arguments, where one
        changes in flight."""
        return None

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Makes the scheduler where YAML cannot say it, in the same way; None is no scheduler."""
        return None

    def loader(
        self, dataset: Dataset[Any], batches: Sampler[list[int]] | None, phase: str, options: dict[str, Any]
    ) -> Iterable[Any]:
        """The loader of a phase; `batches` yields this rank's lists of indices and remembers where it is. Of a stream
        there are none: `dataset` is this rank's share of it, and the loader must keep its place."""
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
        """With `strategy: fsdp`, the submodules whose parameters are gathered together when they are called, and let go
        after; what is in none of them is gathered for the whole forward pass.

        Here the members of every `ModuleList` (a transformer's blocks), or, where there is none, of the `Sequential`s
        that are in no member of another."""
        from torch import nn

        def members(kind: type[nn.Module]) -> list[nn.Module]:
            containers = [module for module in model.modules() if isinstance(module, kind)]
            return [member for one in containers for member in one.children() if type(member) is not kind]

        of_sequentials = members(nn.Sequential)
        within = {inner for member in of_sequentials for inner in member.modules() if inner is not member}
        return members(nn.ModuleList) or [member for member in of_sequentials if member not in within]

    def required_hooks(self) -> Mapping[str, Any]:
        """Hooks this task cannot do without: a name to what YAML would say of it, its class or an object; the
        experiment may refine them."""
        return {}


def takes_turns(task: type[Task]) -> bool:
    """Whether a task trains several optimizers, one after the other in each iteration."""
    return task.turns is not Task.turns


def trains_itself(task: type[Task]) -> bool:
    """Whether a task has a loop of its own. A field may be called `train` too."""
    return task.train is not Task.train and callable(task.train)


def _unwritten(name: str) -> Callable[..., Any]:
    def method(self: Task, *given: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} trains by itself, and has no {name}()")

    return method


def without_loss(self: Task, output: Any, batch: Any) -> Any:
    """Stands where a task that takes turns has no `loss`."""
    raise NotImplementedError


def show_progress(task: Task, state: State) -> None:
    """Makes a loop's state what the task reads in `progress`."""
    vars(task)["_progress"] = state


def hide_progress(task: Task) -> None:
    """Takes it away again, so that a task that is kept keeps no model."""
    vars(task).pop("_progress", None)
