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
    """The model, data, loss and metrics of an experiment.

    A task is a dataclass: its fields are its parameters in YAML (`task_args`), and a sweep may vary
    them. Hookyard checks their types and bounds, and a field whose name begins with `_` cannot be
    set. A task must define `model`, `data` and `loss`. With several optimizers it defines `turns`
    too, and then uses `loss` only in val and test. With a loop of its own, `train` alone is enough.

    Each rank creates one task. The process that starts a run also creates one to check the fields,
    so don't build the model or load data in `__post_init__`.

    Example:
        ```python
        @dataclass
        class Line(Task):
            hidden: int = 8

            def model(self):
                hidden = nn.Linear(1, self.hidden)
                return nn.Sequential(hidden, nn.ReLU(), nn.Linear(self.hidden, 1))

            def data(self):
                inputs = torch.linspace(0, 1, 64).unsqueeze(1)
                return {"train": TensorDataset(inputs, 2 * inputs)}

            def loss(self, output, batch):
                return nn.functional.mse_loss(output, batch[1])
        ```
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
        """The state of the loop, to be read in methods such as `loss`.

        `self.progress.epoch`, `step`, `iteration` and so on count what is completed. `phase` is
        `train`, `val`, `test` or a name such as `val/noisy`. Treat the state as read-only; add
        columns to the row with `self.progress.record(name=value)`, and images, figures and tables
        with `record_image`, `record_figure` and `record_table`. Outside a loop, it is the initial
        state of a run.

        Raises:
            TaskError: In a DataLoader worker, which is ahead of the loop.
        """
        from torch.utils.data import get_worker_info

        if get_worker_info():
            raise TaskError(
                "a DataLoader worker is ahead of the loop and does not know its progress; give the "
                "dataset set_epoch(), or set loader.num_workers to 0"
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
        """Build the model.

        Every rank calls this with the same seed, so that all start with the same weights. The loop
        moves the model to the device.

        Returns:
            The model, on the CPU. Frozen networks that `forward` uses belong into it, too.
        """

    @abstractmethod
    def data(self) -> Mapping[str, Dataset[Any] | Iterable[Any]]:
        """Return the datasets by name.

        Before each call, on each rank, all generators of torch, NumPy and Python are seeded with
        the experiment's `seed`, which `torch.initial_seed()` returns. A random split is therefore
        the same everywhere, also after a resume. The loop calls this again for a hook that reads an
        iterable dataset of its own.

        Returns:
            `train`, and optionally `val`, `test` and further ones such as `val/noisy`. Each is a
            map-style dataset, an iterable dataset, a `ray.data.Dataset`, or a loader with
            `state_dict` and `load_state_dict`. The loop divides datasets among the ranks, but not a
            loader, which every rank reads to its end.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that this rank's task carries from batch to batch.

        An example is the hidden state of a recurrent network. It is saved in each checkpoint.

        Returns:
            Tensors, numbers, text, and containers of these; empty by default.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, when a run resumes. Required with `state_dict`.

        Args:
            state: The state from the checkpoint, if it was not empty. Tensors are on the CPU.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has state_dict() and no load_state_dict()"
        )

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor | Mapping[str, Tensor] | None:
        """Return the mean loss over the batch's samples.

        A task with `turns` uses this only in val and test.

        Args:
            output: What `forward` returned.
            batch: The batch, on the device.

        Returns:
            A scalar; or a mapping of terms, whose sum is trained. Each term has a column and a
            mean, such as `train/kl` for the term `kl`. In val and test it may be None for all
            batches, for models such as detectors that compute a loss only in training.
        """

    def turns(
        self, model: nn.Module, batch: Any
    ) -> Iterator[tuple[str, Tensor | Mapping[str, Tensor]]]:
        """Yield the loss of each optimizer, in the order in which they step.

        After a `yield`, that optimizer has stepped, so the code that follows sees the new weights.
        Only the parameters of the turn's optimizer get gradients. An optimizer may take several
        turns in an iteration, or none.

        Args:
            model: The model that `model` returned.
            batch: The batch, on the device.

        Yields:
            The name of an optimizer, and its loss or a mapping of terms. Every rank must take the
            same turns.

        Example:
            ```python
            def turns(self, model, batch):
                images = model.generator(torch.randn(len(batch[0]), 16))
                yield "d", discriminator_loss(model, batch[0], images.detach())
                yield "g", generator_loss(model, images)
            ```
        """
        raise NotImplementedError

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        """Train in a loop of your own.

        Write it as a generator that yields reports. Further parameters, such as `batch_size: int =
        32`, read the keys of the experiment with their names; a key that no parameter reads is an
        error.

        Args:
            session: Records rows, and saves and restores state.

        Yields:
            The metrics of a report, with names that begin with `train/`, `val/` or `test/`. A
            report ends an epoch. Every rank must yield at the same points; the report has the
            means.
        """
        raise NotImplementedError

    def parameters(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """Return the parameters of several optimizers, unless the file has patterns for them.

        Args:
            model: The model that `model` returned.

        Returns:
            Parameters by the name of their optimizer.
        """
        return {}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the model on a batch. By default, call `model(batch[0])`.

        Args:
            model: The model that `model` returned, for any number of ranks and also when compiled.
                You may call its submodules one by one, except with `strategy: fsdp`. In val and
                test it is in evaluation mode, and records no gradients.
            batch: The batch, on the device.

        Returns:
            The output, for `loss`, `metrics` and meters.
        """
        return model(batch[0])

    def metrics(self, output: Any, batch: Any) -> Mapping[str, Tensor]:
        """Return metrics that are means over samples.

        Args:
            output: What `forward` returned.
            batch: The batch, on the device.

        Returns:
            One value per sample for each metric, shape (B,). The loop averages over all samples of
            all ranks, so that `val/accuracy` is exact.
        """
        return {}

    def meters(self) -> Mapping[str, Any]:
        """Return metrics that are not means over samples, such as R² or AUC.

        In val and test, the loop calls `update(output, target(batch))` with each batch, and
        `compute()` at the end, which returns a number, a vector, a matrix, or a mapping of these. A
        matrix, such as a confusion matrix, is not a metric, but is shown by reports, the live page
        and loggers. Every rank needs at least one sample.

        Returns:
            torchmetrics objects by name, or others with `to(device)`, `update` and `compute`.
        """
        return {}

    def target(self, batch: Any) -> Any:
        """Return the target that meters compare with the output. By default, return `batch[1]`.

        Args:
            batch: The batch, on the device.

        Returns:
            The second argument of a meter's `update`.
        """
        return batch[1]

    def predict(self, output: Any, batch: Any) -> Any:
        """Return what `hookyard predict` keeps of each sample. By default, return the output.

        Args:
            output: What `forward` returned, in evaluation mode.
            batch: The batch, on the device. It has what the data gives, perhaps without targets.

        Returns:
            A tensor, an array or a list with an entry for each sample, or a mapping of names to
            these. The names become columns; a single one is called `output`.

        Example:
            ```python
            def predict(self, output, batch):
                return {"label": output.argmax(1), "confidence": output.softmax(1).amax(1)}
            ```
        """
        return output

    def batch_size(self, batch: Any) -> int:
        """Return the number of samples over which `loss` is the mean.

        This weighs the batch in the means of a phase, and the columns `batch_size`, `samples` and
        `samples_per_s` count it. Override it if a sample is not a row but, for example, a character
        of a padded batch.

        By default, it is the first dimension of the batch's first tensor or array that has one.
        Mappings, tuples, lists and dataclasses are searched depth first; scalars are passed over. A
        list of texts or numbers counts as many samples as entries, a `PackedSequence` its
        sequences, a nested tensor its tensors, a list of mappings its entries, and an object with
        `num_graphs` or `batch_size` as an int that number. With your own `collate` or `loader`, an
        inner list may hold an item for each sample.

        Args:
            batch: The batch.

        Returns:
            The number of samples.

        Raises:
            TaskError: If the number is ambiguous, for example for a list of two images and nothing
                beside it, or numbers before a tensor of another length.
        """
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
        """Return how much the batch's loss counts: what `loss` is a mean of.

        This is usually the number of tokens without padding. Micro-batches of a step and ranks then
        train like one large batch, and means of the loss are weighted by it. A batch of weight 0
        trains nothing, and has no value in the column `loss`. Without this method, micro-batches
        and ranks count alike, as in DDP, and means are weighted by `batch_size`.

        It costs memory for the batches of a step, which are loaded before its first iteration, and
        one exchanged number per step with several ranks.

        Args:
            batch: The batch, on the CPU.

        Returns:
            The weight, 0 or more.
        """
        raise NotImplementedError

    def sampler(
        self, dataset: Dataset[Any], phase: str
    ) -> Sampler[int] | Sequence[float] | Tensor | None:
        """Return the order of a map-style dataset, for all ranks together.

        The loop calls this once and iterates over the sampler in each epoch, with all generators
        seeded for it, and after `set_epoch` if the sampler has it. For a given epoch, the sampler
        must yield the same indices on every call and every rank. The loop divides them among the
        ranks, and rejects a `DistributedSampler`, which would divide them a second time. A sampler
        without an end needs `steps` in the experiment.

        Args:
            dataset: The dataset of the phase.
            phase: `train`, `val`, `test`, or a name such as `val/noisy`.

        Returns:
            A torch Sampler of indices; or a weight for each sample, and then an epoch has as many
            samples as the dataset, sampled with replacement. None means each sample once, shuffled
            in train.
        """
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Collate samples into a batch. By default, call torch's `default_collate`.

        Args:
            samples: Samples of the dataset.

        Returns:
            A batch. The loop moves tensors in tuples, lists, mappings and dataclasses to the
            device, and calls `to(device)` on other objects that have it.
        """
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Build an optimizer that YAML cannot describe, and do nothing else.

        Further parameters of the method become keys of `optimizer` in the file, with their types,
        bounds and defaults, and a sweep can vary them. A `type` in the file replaces this
        optimizer. The loop calls the method once, when training begins or continues. After a resume
        with other arguments, each group must hold the same parameters as before.

        Args:
            model: The model that `model` returned.

        Returns:
            The optimizer; or None, the default, for that of the file.

        Example:
            ```python
            def optimizer(self, model, lr: float = 0.01, body_lr: float = 0.003):
                body = {"params": model.body.parameters(), "lr": body_lr}
                return torch.optim.AdamW([body, {"params": model.head.parameters(), "lr": lr}])
            ```
        """
        return None

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Build a scheduler that YAML cannot describe, like `optimizer`.

        Further parameters become keys of `scheduler` in the file. One named `T_max`, `total_steps`
        or `total_iters` defaults to the length of the run. `scheduler: null` switches the scheduler
        off.

        Args:
            optimizer: The optimizer of the file, or that of the method `optimizer`.

        Returns:
            The scheduler; or None, the default, for that of the file.
        """
        return None

    def loader(
        self,
        dataset: Dataset[Any],
        batches: Sampler[list[int]] | None,
        phase: str,
        options: dict[str, Any],
    ) -> Iterable[Any]:
        """Return the loader of a phase. Override it if `collate` is not enough.

        Args:
            dataset: The dataset of the phase; of an iterable one, this rank's part.
            batches: Lists of indices, one for each of this rank's batches. Keep them in an
                attribute of your loader, where `sampler_seed` finds them to shuffle each epoch
                anew. None for an iterable dataset.
            phase: `train`, `val`, `test`, or a name such as `val/noisy`.
            options: Other arguments for a `DataLoader`.

        Returns:
            A sized iterable that yields a batch for each list, in order; by default a `DataLoader`.
            For an iterable dataset, it must have `state_dict` and `load_state_dict`; by default a
            `StatefulDataLoader` of torchdata.

        Raises:
            ConfigError: If the dataset is iterable and torchdata is not installed.
        """
        from torch.utils.data import DataLoader, default_collate

        # The import in `collate` would cost time in each batch.
        is_default = getattr(self.collate, "__func__", None) is Task.collate
        collate = default_collate if is_default else self.collate
        if batches is None:
            stateful_loader = import_stateful_loader(phase)
            with warnings.catch_warnings():
                # torchdata calls a function that torch has deprecated.
                warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
                loader: Iterable[Any] = stateful_loader(dataset, collate_fn=collate, **options)
            return loader
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)

    def fsdp_units(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the submodules whose parameters `strategy: fsdp` gathers together.

        They are gathered before the submodule's call and released after it. Parameters outside them
        are gathered for the whole forward pass.

        Args:
            model: The model that `model` returned.

        Returns:
            By default the members of every `ModuleList` (a transformer's blocks), else of the
            outermost `Sequential`s.
        """
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
        nested = set[nn.Module]().union(*({*layer.modules()} - {layer} for layer in layers))
        return [layer for layer in layers if layer not in nested]

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks without which the loss does not work.

        An experiment can change their fields, but cannot switch them off.

        Returns:
            Hooks by name, each a mapping as in YAML, a class, or an instance.
        """
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


def import_stateful_loader(phase: str) -> Any:
    """Return the loader of iterable datasets; raises ConfigError if its package is missing."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ModuleNotFoundError:
        raise ConfigError.at(
            "task",
            f"the {phase} data is an iterable dataset, whose loader needs the package torchdata",
            suggestion="pip install 'hookyard[torchdata]'",
        ) from None
    return StatefulDataLoader


def missing_loss(self: Task, output: Any, batch: Any) -> Any:
    """Replace the `loss` of a task that has only `turns`."""
    raise NotImplementedError


def attach_progress(task: Task, state: State) -> None:
    """Set a loop's state as the task's `progress`."""
    vars(task)["_progress"] = state


def detach_progress(task: Task) -> None:
    """Remove `progress`, so the task does not keep the model in memory."""
    vars(task).pop("_progress", None)
