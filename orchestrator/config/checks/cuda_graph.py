"""What cannot be where a step is captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hooks import AnomalyDetection, Hook, Rhythm
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import Problem

INSIDE = ("on_forward", "on_loss", "on_backward", "on_gradients")
"""Events within what is captured, which the host has no part in."""
CAPTURED = ("SGD", "Adam", "AdamW")
"""Optimizers that torch steps wholly on the GPU (fused), with rates that it reads from there."""


def cuda_graph_problems(experiment: Experiment, hooks: Mapping[str, Hook]) -> Iterator[Problem]:
    """What an experiment with `cuda_graph` says that its step cannot do."""
    if not experiment.cuda_graph:
        return
    workers, optimizer = experiment.workers, experiment.optimizer
    if not workers.gpu:
        yield Problem("cuda_graph", "needs a GPU", suggestion="write workers.gpu: true")
    reasons = {
        "workers.count": workers.most > 1 and "the ranks' exchange of gradients is not captured",
        "precision": (
            experiment.precision == "fp16"
            and "the host decides for each step whether it overflowed; bf16 needs no scale"
        ),
        "accumulate": experiment.accumulate != 1 and "each batch is a step",
        "optimizers": bool(experiment.optimizers) and "one optimizer's step is captured",
        "activation_checkpointing": (
            experiment.activation_checkpointing is not None and "the state of the random numbers is read by the host"
        ),
        "optimizer.type": (
            not experiment.optimizers
            and optimizer.type not in CAPTURED
            and f"of torch's optimizers {', '.join(CAPTURED)} step wholly on the GPU"
        ),
        "optimizer.foreach": (
            optimizer.arguments.get("foreach") is not None and "the fused form of the optimizer is captured"
        ),
        "optimizer.fused": optimizer.arguments.get("fused") is False and "the fused form of the optimizer is captured",
    }
    for name, hook in hooks.items():
        events = [event for event in INSIDE if hook.handles(event) and hook.pace(event) != Rhythm(0, "steps")]
        reasons[f"hooks.{name}"] = bool(events) and f"it acts in {', '.join(events)}, within what is captured"
        if isinstance(hook, AnomalyDetection):
            reasons[f"hooks.{name}"] = "it looks at each operation, and the host gives none"
    for path, reason in reasons.items():
        if reason:
            yield Problem(path, f"cannot be with cuda_graph: {reason}")
