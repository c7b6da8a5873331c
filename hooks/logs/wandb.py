"""Curves, parameters and checkpoints in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from hooks.hook import Hook
from hooks.parts.logs.hyperparameters import flatten
from hooks.parts.logs.tracker import Point, Tracker
from hooks.state import State

if TYPE_CHECKING:
    from wandb import Run


@dataclass
class WandB(Tracker, Hook):
    """Sends curves, metrics and the experiment's hyperparameters to Weights & Biases; the newest checkpoint's path is
    in the summary.

    Runs on the master; needs the extra `wandb`. All is sent by a thread of its own, so that no step waits for the
    server, and a failure is logged and never ends the run. Curves are those that the tensorboard hook draws. Their axis
    is the column `step`, the optimizer step, and not W&B's count of messages, so that a resumed run goes on in its W&B
    run at its own steps; `epoch`, `iteration` and `samples` are columns, too. W&B takes nothing back: steps that are
    done again have two values. Source: MMEngine WandbVisBackend (which leaves the axis to W&B).
    """

    project: str | None = None
    """The W&B project; else the experiment's own name."""
    entity: str | None = None
    """The user or team that the project belongs to; W&B's default where it is not said."""
    group: str | None = None
    """Runs that belong together, such as a sweep's name."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """`offline` writes files under `wandb/` for `wandb sync`; else the environment's WANDB_MODE, else online."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run: Run | None = None
        self.run_id = uuid4().hex[:8]

    def on_start(self, state: State) -> None:
        if find_spec("wandb") is None:
            raise ImportError(
                "the wandb hook needs Weights & Biases, which is not installed: pip install 'hookyard[wandb]'"
            )
        state.artifacts.mkdir(parents=True, exist_ok=True)
        # W&B makes its own folder `wandb` in it.
        self._about: dict[str, Any] = {
            "dir": str(state.artifacts),
            "project": self.project or str(state.config.get("name") or state.name),
            "name": state.name,
            "config": flatten(state.config),
        }
        self.open(self.name or "wandb", self._connect)

    # In the sender's thread

    def _connect(self) -> Run:
        """The W&B run: a new one, or that of the checkpoint."""
        if self._run is None:
            import wandb

            run = wandb.init(
                **self._about,
                id=self.run_id,
                resume="allow",
                entity=self.entity,
                group=self.group,
                tags=self.tags,
                mode=self.mode,
                allow_val_change=True,
                reinit="create_new",
                # Nobody may be asked for a key in a terminal that shows training.
                settings=wandb.Settings(console="off", silent=True, login_timeout=1),
            )
            run.define_metric("step", hidden=True)
            run.define_metric("*", step_metric="step")
            self._run = run
        return self._run

    def log(self, values: Mapping[str, float], at: Point) -> None:
        place = {"step": at.step, "epoch": at.epoch, "iteration": at.iteration, "samples": at.samples}
        self._connect().log({**place, **values})

    def note(self, name: str, value: str) -> None:
        self._connect().summary[name] = value

    def finish(self, *, failed: bool) -> None:
        import wandb

        self._connect().finish(exit_code=int(failed))
        # W&B's own process may write the files of an offline run a moment later, when they are on their way elsewhere.
        wandb.teardown()
