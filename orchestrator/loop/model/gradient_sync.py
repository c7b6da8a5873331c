"""When ranks exchange the gradients of a model, and whether they exchanged all. Runs in workers."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hooks.parameter_names import join_names
from hooks.private_torch import gradients_never_exchanged
from orchestrator.errors import TaskError
from orchestrator.units import format_count


def set_gradient_sync(model: nn.Module, now: bool) -> None:
    """Set whether the next backward pass synchronizes gradients across ranks, or accumulates them
    locally."""
    if isinstance(model, DistributedDataParallel):
        # DDP's no_sync() does the same, but a context would have to enclose half the iteration.
        model.require_backward_grad_sync = now
        return
    exchange = getattr(model, "set_requires_gradient_sync", None)
    if callable(exchange):
        exchange(now)


def check_gradients_synced(model: DistributedDataParallel) -> None:
    """Raise TaskError if the last backward pass did not synchronize all gradients: some parameters
    are unused, or have been unfrozen since the start."""
    unfrozen = [name for name, value in model.module.frozen.items() if value.requires_grad]
    if unfrozen:
        raise TaskError(
            f"{join_names(unfrozen, 4)} did not require gradients when the ranks started, so DDP does not exchange"
            " them. Let model() return trainable parameters, and freeze them with the hook freeze_parameters, whose"
            " `until` says for how long"
        )
    indices = gradients_never_exchanged(model)
    if indices is None:
        return
    trained = model.module.trained
    names = [trained[index] for index in indices if index < len(trained)]
    unused = "the model"
    if names:
        parameters = format_count(len(trained), "parameter")
        unused = f"{len(names)} of the model's {parameters} ({join_names(names, 4)})"
    advice = (
        "Use them in every forward(), call requires_grad_(False) for them in model(), or set"
        " workers: {ddp: {find_unused_parameters: true}}, without static_graph"
    )
    if model.find_unused_parameters:
        advice = (
            "Return the output of forward() as tensors in lists, tuples or mappings, in which"
            " torch looks for them"
        )
    raise TaskError(
        f"the loss does not depend on {unused}, so ranks cannot exchange their gradients. {advice}"
    )
