"""Frozen weights, which checkpoints of the trainable weights leave out. Used in workers, and where a
run's model is loaded."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from hooks.parameter_names import join_names
from orchestrator.disk.initial_weights import check_unchanged, find_weights
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.model.initial_weights import read_matching

RECORD = "frozen"
"""Entry of a manifest: the digests of the weights that the checkpoint leaves out, and the `init` that
they came from."""


class FrozenWeights:
    """The parameters of a model that are frozen at the start of a run.

    A checkpoint leaves out those that are still frozen and have still their initial values, bit for
    bit. Parameters that were trained for a while, and all buffers, stay in the checkpoint, because
    BatchNorm also updates the statistics of a frozen layer.
    """

    def __init__(
        self, module: nn.Module, experiment: Experiment, origin: InitialWeights | None
    ) -> None:
        self._module = module
        self._import_paths = experiment.import_paths
        self._init = experiment.init
        self._origin = origin
        self._digests = {
            name: compute_digest(parameter)
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        }
        self._left_out: dict[str, str] = {}
        if not self._digests:
            raise ConfigError.at(
                "hooks.checkpoint.weights",
                "trainable has no effect: no parameter is frozen at the start",
                suggestion="call requires_grad_(False) on those that are not trained",
            )

    def continue_from(self, record: Mapping[str, Any] | None, checkpoint: str) -> None:
        """Leave out what the restored checkpoint has left out; raises UsageError if it has all
        weights, so that their initial values are unknown."""
        if record is None:
            raise UsageError(
                f"checkpoint '{checkpoint}' has all weights, so hooks.checkpoint.weights must be all; to train on"
                " with trainable, start another run with init.from"
            )
        self._digests = record["digests"]
        self._init = None
        self._origin = None
        if record["init"]:
            self._init, self._origin = _read_init(record["init"])

    def leave_out(self, content: Mapping[str, Any]) -> None:
        """Remove the frozen weights from the contents of a checkpoint, also from the averages of
        hooks."""
        frozen = {}
        self._left_out = {}
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            digest = self._digests.get(name)
            if digest and not parameter.requires_grad and digest == compute_digest(parameter):
                frozen[name] = parameter.detach()
                self._left_out[name] = digest
        for weights in _list_weights(content, "model", "exact"):
            for name in frozen.keys() & weights.keys():
                if torch.equal(weights[name], frozen[name].to(weights[name])):
                    del weights[name]

    def describe(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        if self._init is None:
            return {"digests": self._left_out, "init": None}
        self._origin = self._origin or find_weights(self._init, self._import_paths)
        init = {**self._init.model_dump(mode="json"), "origin": asdict(self._origin)}
        return {"digests": self._left_out, "init": init}


def add_frozen_weights(
    content: Mapping[str, Any], record: Mapping[str, Any], module: nn.Module, checkpoint: str
) -> None:
    """Add the frozen weights that a checkpoint has left out to its contents.

    `module` is the model as the task builds it, whose own weights they are unless the run had an
    `init`. Raises CheckpointError if they differ from those of the run.
    """
    state = module.state_dict()
    if record["init"]:
        init, origin = _read_init(record["init"])
        check_unchanged(origin)
        state |= read_matching(init, origin, state)
    digests = record["digests"]
    different = [
        name
        for name, digest in digests.items()
        if name not in state or compute_digest(state[name]) != digest
    ]
    if different:
        raise CheckpointError(
            f"checkpoint '{checkpoint}' has only the trainable weights, and frozen ones of the model are"
            f" not those of its run ({join_names(different)}): restore what model() depends on, such as its"
            " code, its files, task_args and seed"
        )
    for weights in _list_weights(content, "model"):
        for name in digests:
            weights.setdefault(name, state[name])


def _read_init(stored: Mapping[str, Any]) -> tuple[Init, InitialWeights]:
    fields = {key: value for key, value in stored.items() if key != "origin"}
    return Init.model_validate(fields), InitialWeights(**stored["origin"])


def compute_digest(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's numbers, wherever and however it is stored."""
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(numbers.numpy().data).hexdigest()


def _list_weights(content: Mapping[str, Any], *keys: str) -> Iterator[dict[str, Any]]:
    """Yield the model's state dict, and those that files of hooks have under these keys."""
    for file, entry in content.items():
        if file == "model":
            yield entry
        elif isinstance(entry, Mapping) and file not in ("optimizer", "hooks"):
            yield from (entry[key] for key in keys if isinstance(entry.get(key), dict))
