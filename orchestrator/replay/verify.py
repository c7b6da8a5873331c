"""Verification that training continues bit for bit from its checkpoints, on this machine, without
Ray or a run."""

import hashlib
import pickle
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from hooks import Hook, Priority, State
from hooks.distributed import sharded_tensors as shards
from hooks.private_torch import tree_leaves
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.in_process import find_device
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_data import may_use_ray_data
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.experiment.resolve import get_resolved, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.data.stream import Stream
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.torch_settings import thread_count
from orchestrator.loop.state.attributes import GENERATORS, list_values, read_generator
from orchestrator.loop.training_run import RunContext
from orchestrator.loop.world import World
from orchestrator.randomness import random_state
from orchestrator.replay.rank_processes import train_in_processes, without_loggers
from orchestrator.storage import Storage
from orchestrator.task import has_custom_loop
from orchestrator.units import get_unit

_EPOCH_STEPS = 4
"""Steps of each epoch, which is cut short."""
_EPOCHS = 3
_EVALUATED_BATCHES = 2
_LARGE_BYTES = 2**20
"""Size from which an array of a dataset is taken for its samples."""
_MAX_CAUSES = 6


@dataclass(frozen=True)
class Continuation:
    """Training that continued from a checkpoint in a fresh process, compared with training that did
    not stop."""

    checkpoint: str
    iteration: int
    """Iterations that the checkpoint has completed."""
    loader_processes: int
    difference: str
    """The first difference; empty if all values are equal bit for bit."""
    causes: list[str]
    """State that the checkpoint did not restore, or other causes of the difference."""


@dataclass
class _Trained:
    """Record of the training in one process, by iteration. Picklable."""

    samples: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics of each report."""
    state: dict[int, dict[str, str]] = field(default_factory=dict)
    """Values before an iteration, by path."""
    end: dict[str, str] = field(default_factory=dict)
    """Weights, buffers, optimizers and random states at the end."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    is_stream: bool = False
    """Whether the training data is iterable, which continues only with as many loader processes as
    before."""
    suspects: list[str] = field(default_factory=list)
    """Generators of the training data and of its modules."""


@dataclass
class _Witness(Hook):
    """Saves checkpoints and notes what training does."""

    loop: Any = None
    trained: _Trained = field(default_factory=_Trained)
    save_at: tuple[int, ...] = ()

    priority: ClassVar[Priority | int] = Priority.HIGHEST

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.save_at:
            self.trained.state[state.iteration] = _list_state(self.loop)

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.trained.samples[state.iteration + 1] = _digest(tree_leaves(state.batch))

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        assert state.loss is not None
        self.trained.losses[state.iteration] = state.loss.item()
        # At the end of a phase the loop saves after it.
        if state.iteration in self.save_at and state.phase_iteration < state.phase_length:
            state.request_checkpoint("verify")

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.save_at:
            state.request_checkpoint("verify")

    def on_saved(self, state: State, path: str) -> None:
        name = path.rpartition("/")[2]
        self.trained.checkpoints[state.iteration] = name
        assert state.checkpoints is not None
        state.checkpoints.retain("verify", [*self.trained.checkpoints.values()])


@dataclass(frozen=True)
class _Training:
    """Training of a few steps, in processes of its own. Picklable."""

    source: ExperimentSource
    folder: str
    loader_processes: int
    checkpoint: str | None = None

    def train_rank(self, world: World) -> None:
        """Train one rank, and write what it did to the folder. Raises RankFailed if user code
        fails."""
        try:
            trained = self._train(world)
        except HookyardError:
            raise
        except Exception as error:  # from user code
            raise RankFailed.from_error(world.rank, error) from error
        Path(self.folder, f"trained-{world.rank}").write_bytes(pickle.dumps(trained))

    def _train(self, world: World) -> _Trained:
        resolved = resolve(self.source)
        experiment = _extend(resolved.experiment, self.loader_processes)
        if world.world_size == 1:
            world = replace(world, device=find_device(experiment.workers))
        witness = _Witness()
        store = CheckpointStore(
            Storage(Path(self.folder, "checkpoints")), is_master=world.is_master
        )
        loop = Loop(
            resolved.task,
            experiment,
            {**without_loggers(resolved.hooks), "verify": witness},
            RunContext(world=world, store=store, artifacts=Path(self.folder)),
            resumes=self.checkpoint is not None,
        )
        steps = min(_EPOCH_STEPS, -(-loop.training.epoch.length // experiment.micro_batches))
        length = min(steps * experiment.micro_batches, loop.training.epoch.length)
        inside = length + max(1, steps // 2) * experiment.micro_batches
        witness.trained.is_stream = isinstance(loop.training.data.train, Stream)
        witness.loop, witness.save_at = (
            loop,
            (inside, 2 * length) if inside < 2 * length else (2 * length,),
        )
        loop.training.epoch.shorten(length)
        for phase in loop.training.data.phases.values():
            # Few batches tell as much as all, in a fraction of the time.
            phase.evaluation_batches = partial(_list_few, phase.evaluation_batches)  # type: ignore[method-assign]
        if self.checkpoint:
            loop.restore(self.checkpoint)
            loop.saving.store = None  # the checkpoints stay as they are
        witness.trained.suspects = [
            path for path, value in _list_of_data(loop) if isinstance(value, GENERATORS)
        ]
        reports = loop.run()
        for report in reports:
            witness.trained.metrics[loop.state.iteration] = dict(report.metrics)
            if loop.state.iteration >= _EPOCHS * length:
                break
        witness.trained.end = _list_end(loop)
        reports.close()
        return witness.trained


def verify(experiment: Experiment) -> Iterator[Continuation]:
    """Train a few steps, continue from a checkpoint inside an epoch and from one at its end, and
    compare.

    Each training runs in fresh processes on this machine, with as many ranks as the experiment
    names. If the experiment has loader processes and map-style data, the second continuation has
    another number of them. Raises UsageError if the experiment cannot be verified, or if its
    training fails.
    """
    resolved = get_resolved(experiment)
    if has_custom_loop(type(resolved.task)):
        raise UsageError(
            "the task has its own training loop, which saves what it gives to session.restore()"
        )
    if may_use_ray_data(type(resolved.task)):
        raise UsageError(
            "the task uses Ray Data, which needs a Ray cluster; verify it with a dataset of PyTorch"
        )
    workers = resolved.experiment.workers
    if workers.max_count > 1 and workers.gpu:
        raise UsageError(
            "ranks on several GPUs cannot be verified; set workers.count=1, or workers.gpu=false"
        )
    processes = resolved.experiment.loader.num_workers
    train = partial(_train, experiment.source, workers.max_count, thread_count(resolved.experiment))
    with tempfile.TemporaryDirectory(prefix="hookyard-verify-") as folder:
        whole = train(folder, processes)
        again: list[_Trained] | None = None
        for iteration, checkpoint in sorted(whole[0].checkpoints.items()):
            is_last = iteration == max(whole[0].checkpoints)
            takes_another_number = processes > 0 and is_last and not whole[0].is_stream
            other = processes + 1 if takes_another_number else processes
            resumed = train(folder, other, checkpoint)
            pairs = list(zip(whole, resumed, strict=True))
            differences = [_find_difference(*pair) for pair in pairs]
            rank = next((rank for rank, text in enumerate(differences) if text), None)
            if rank is None:
                yield Continuation(checkpoint, iteration, other, "", [])
                continue
            causes = _find_causes(*pairs[rank], iteration)
            if not causes:
                again = again or train(folder, processes)
                causes = _find_other_causes(whole[rank], again[rank], processes)
            prefix = f"rank {rank}: " if len(whole) > 1 else ""
            yield Continuation(checkpoint, iteration, other, prefix + differences[rank], causes)


def _train(
    source: ExperimentSource,
    ranks: int,
    threads: int,
    folder: str,
    processes: int,
    checkpoint: str | None = None,
) -> list[_Trained]:
    """Train in fresh processes, and return the record of each rank. Raises UsageError if the
    training fails."""
    if checkpoint is None:
        folder = tempfile.mkdtemp(dir=folder) if Path(folder, "checkpoints").exists() else folder
    for name in ("ranks", "failed"):
        Path(folder, name).unlink(missing_ok=True)
    training = _Training(source, folder, processes, checkpoint)
    try:
        train_in_processes(training.train_rank, ranks, folder, threads)
    except RunError as error:
        raise UsageError(f"cannot verify, because training fails: {error}") from None
    return [pickle.loads(Path(folder, f"trained-{rank}").read_bytes()) for rank in range(ranks)]


def _extend(experiment: Experiment, loader_processes: int) -> Experiment:
    """Return the experiment with enough epochs or steps, so that training does not end."""
    if experiment.steps:
        length = {"steps": max(experiment.steps, (_EPOCHS + 1) * _EPOCH_STEPS)}
    else:
        length = {"epochs": max(experiment.epochs or 0, _EPOCHS + 1)}
    loader = experiment.loader.model_copy(update={"num_workers": loader_processes})
    return experiment.model_copy(update={**length, "loader": loader})


def _list_few(evaluation_batches: Any, *arguments: Any) -> tuple[Iterator[Any], Iterable[object]]:
    """Return the first batches of an evaluation."""
    batches, places = evaluation_batches(*arguments)
    return batches, islice(places, _EVALUATED_BATCHES)


# State


def _list_state(loop: Loop) -> dict[str, str]:
    """Return the digests of all values that training may depend on, by path."""
    state = loop.state
    known = {id(state), id(loop)}
    values = dict(_list_of_data(loop))
    for name, optimizer in state.optimizers.items():
        values |= list_values(optimizer, ".".join(filter(None, ["optimizer", name])), known)
    known |= {id(optimizer) for optimizer in state.optimizers.values()}
    known |= {
        id(part) for part in [state.model, *state.module.modules(), *state.module.parameters()]
    }
    values |= list_values(loop.task, "task", known)
    for name, hook in loop.plan.hooks.items():
        if not (
            hook.observes
            or type(hook).__module__.startswith("hooks.")
            or isinstance(hook, _Witness)
        ):
            values |= list_values(hook, f"hooks.{name}", known)
    values |= list_values(state.module, "model")
    return {path: _digest([value]) for path, value in values.items()}


def _list_of_data(loop: Loop) -> Iterator[tuple[str, Any]]:
    """Yield values of the training dataset, and generators of the modules of dataset and task, with
    their paths."""
    dataset = getattr(loop.training.data.train.loader, "dataset", None)
    modules = {type(loop.task).__module__}
    if dataset is not None:
        modules.add(type(dataset).__module__)
        for path, value in list_values(
            dataset, f"the train data: {type(dataset).__name__}"
        ).items():
            if getattr(value, "nbytes", 0) < _LARGE_BYTES:
                yield path, value
    for name in sorted(module for module in modules if not module.startswith("torch.")):
        for key, value in vars(sys.modules[name]).items():
            if isinstance(value, (int, float, *GENERATORS)) and not isinstance(value, bool):
                yield f"{name}.{key}", value


def _list_end(loop: Loop) -> dict[str, str]:
    state = loop.state
    tensors = [*state.module.named_parameters(), *state.module.named_buffers()]
    values = {f"model.{name}": tensor for name, tensor in tensors}
    for name, optimizer in state.optimizers.items():
        values |= list_values(optimizer, ".".join(filter(None, ["optimizer", name])))
    values |= {f"the random numbers of {name}": numbers for name, numbers in random_state().items()}
    return {name: _digest(tree_leaves(value)) for name, value in values.items()}


def _digest(values: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(_to_bytes(value))
    return digest.hexdigest()


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, GENERATORS):
        return read_generator(value).encode()
    if isinstance(value, Tensor):
        return _read_tensor(shards.local(value).detach())
    if isinstance(value, numpy.ndarray):
        content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        return f"{value.dtype}{value.shape}".encode() + content

    # The text of another object may be its address, or leave out most of its numbers.
    is_object = not isinstance(value, int | float | complex | str | bytes | None)
    if is_object and (parts := list_values(value, type(value).__qualname__)):
        return b"".join(path.encode() + _to_bytes(part) for path, part in parts.items())
    text = repr(value)
    return b"" if hex(id(value)) in text else text.encode()


def _read_tensor(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor, which may be sparse or nested, with its dtype and shape."""
    if tensor.is_nested:
        return b"".join(map(_read_tensor, tensor.unbind()))
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    raw = tensor.cpu().contiguous().reshape(-1)
    numbers = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
    return f"{tensor.dtype}{tuple(tensor.shape)}".encode() + numbers


# Comparison


def _is_repeatable(metric: str) -> bool:
    """Return whether a metric has no unit of time, speed or memory, in which runs differ."""
    return not get_unit(metric)


def _find_difference(whole: _Trained, other: _Trained) -> str:
    """Return the first difference in samples, losses, metrics, or the state at the end; empty if
    there is none."""
    for iteration, loss in other.losses.items():
        if other.samples[iteration] != whole.samples.get(iteration):
            return f"the samples of iteration {iteration} differ"
        expected = whole.losses[iteration]
        if loss != expected and (loss == loss or expected == expected):
            return f"the loss of iteration {iteration} is {loss:.8g}, not {expected:.8g}"
    for iteration, metrics in other.metrics.items():
        for name, value in metrics.items():
            before = whole.metrics.get(iteration, {}).get(name)
            if repr(value) != repr(before) and _is_repeatable(name) and isinstance(value, float):
                return f"{name} after iteration {iteration} is {value}, not {before}"
    different = [
        name for name in {**whole.end, **other.end} if whole.end.get(name) != other.end.get(name)
    ]
    return f"at the end {', '.join(different[:4])} differ" if different else ""


def _find_causes(whole: _Trained, resumed: _Trained, iteration: int) -> list[str]:
    """Return a line for each value that differed when training continued."""
    before, after = whole.state.get(iteration, {}), resumed.state.get(iteration, {})
    changed = [path for path in before if path in after and before[path] != after[path]]
    missing = [path for path in before if path not in after]
    lines = [f"{path} is not restored: {_advise(path)}" for path in changed]
    lines += [f"{path} does not exist after the restore: {_advise(path)}" for path in missing]
    return lines[:_MAX_CAUSES]


def _advise(path: str) -> str:
    root = path.partition(".")[0]
    if root == "task":
        return "make it a part of the model, or return it from the task's state_dict()"
    if root == "hooks":
        return "name it in the hook's state_fields, or rank_state_fields if ranks differ"
    if root == "optimizer":
        return "return it from the optimizer's state_dict()"
    if root == "model":
        return "register it as a buffer, or compute it from the input"
    return "draw from torch, numpy.random or random, and derive the rest from the index or from set_epoch(epoch)"


def _find_other_causes(whole: _Trained, again: _Trained, loader_processes: int) -> list[str]:
    """Return causes that no value of the training process shows."""
    if difference := _find_difference(whole, again):
        cause = "the time, an unseeded generator, the order of a set, or operations that are not deterministic"
        return [
            f"a second run from the beginning differs too ({difference}): training depends on {cause}"
        ]
    if loader_processes:
        names = (
            f", such as {', '.join(whole.suspects)}"
            if whole.suspects
            else ", such as numpy.random there"
        )
        advice = "derive them from the index, or draw from the generators that the loop seeds for each batch"
        return [f"samples depend on state in the DataLoader workers{names}: {advice}"]
    return [
        "training depends on state outside the attributes of task, data, model, optimizer and hooks"
    ]


def summarize(continuations: Iterable[Continuation]) -> Mapping[str, Any]:
    """Return the continuations as plain data."""
    entries = [vars(continuation) for continuation in continuations]
    return {"ok": not any(entry["difference"] for entry in entries), "continuations": entries}
