"""The setup of an experiment, which decides whether a hook can work in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NEEDS_MODEL = "it needs the model, the optimizer or the loaders, which only the task has there"
NEEDS_OUTPUT = "it needs the output of the forward pass, which only the task has there"
NEEDS_WHOLE_BATCHES = "it needs the output and the loss of whole batches, each once"
CHANGES_GRADIENTS = "it changes gradients, which each further evaluation computes again"


@dataclass(frozen=True)
class Setup:
    """The parts of an experiment that decide whether a hook can work in it."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`workers.strategy`; with fsdp each rank has only its shards of the model."""
    custom_loop: bool = False
    """True if the task has its own loop (`Task.train`), which fires only `on_step` of an
    iteration's events."""
    several_optimizers: bool = False
    """True if optimizers take turns within an iteration."""
    splits_batches: bool = False
    """True with `accumulate: auto`, which may split a batch and repeat it."""
    closure: bool = False
    """True if the optimizer evaluates the loss several times a step, as LBFGS does. Hooks see the
    first evaluation."""
    # Not of type Hook, whose module imports this one.
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """All hooks of the experiment by name."""

    def explain(
        self,
        *,
        fsdp: str = "",
        custom_loop: str = "",
        several_optimizers: str = "",
        splits_batches: str = "",
        closure: str = "",
    ) -> str:
        """Return the first of these reasons that applies to this setup.

        Args:
            fsdp: Why the hook cannot work with `strategy: fsdp`.
            custom_loop: Why it cannot work in a custom loop.
            several_optimizers: Why it cannot work with several optimizers.
            splits_batches: Why it cannot work with `accumulate: auto`.
            closure: Why it cannot work with an optimizer that needs a closure, such as LBFGS.

        Returns:
            The reason as a sentence; empty if none applies.
        """
        for applies, reason, setting in (
            (self.strategy == "fsdp", fsdp, "with workers.strategy: fsdp"),
            (self.custom_loop, custom_loop, "in a custom loop"),
            (self.several_optimizers, several_optimizers, "with several optimizers"),
            (self.splits_batches, splits_batches, "with accumulate: auto"),
            (self.closure, closure, "with an optimizer that needs a closure"),
        ):
            if applies and reason:
                return f"does not work {setting}: {reason}"
        return ""

    def explain_need_of_output(self, *, fsdp: str = "") -> str:
        """Return why a hook that needs the output of each whole batch cannot work in this setup.

        Args:
            fsdp: Why the hook cannot work with `strategy: fsdp` either.

        Returns:
            The reason as a sentence; empty if the hook can work.
        """
        # A custom loop is refused before: it does not fire the events that have an output.
        return self.explain(
            fsdp=fsdp,
            several_optimizers=NEEDS_OUTPUT,
            splits_batches=NEEDS_WHOLE_BATCHES,
            closure=NEEDS_WHOLE_BATCHES,
        )
