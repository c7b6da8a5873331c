"""What the checkpoint hooks of a run say about how it saves. Runs in workers."""

from dataclasses import dataclass
from typing import Self

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.event_plan import Plan


@dataclass(frozen=True)
class SavingSettings:
    """How a run saves its checkpoints, as its hooks say."""

    in_background: bool
    """Whether training continues while a checkpoint is being written."""
    saves_end: bool
    """Whether the end of training is saved, also where a hook stops the run."""
    leaves_out_frozen: bool
    """Whether a checkpoint has no weights that are frozen and have their initial values."""

    @classmethod
    def read(cls, plan: Plan) -> Self:
        """Return the settings of a plan's hooks."""
        hooks = [hook for hook in plan.hooks.values() if isinstance(hook, Checkpoint)]
        return cls(
            in_background=any(hook.background for hook in hooks),
            saves_end=any(hook.save_last for hook in hooks),
            leaves_out_frozen=any(hook.weights == "trainable" for hook in hooks),
        )
