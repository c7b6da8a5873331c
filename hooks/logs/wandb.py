"""Curves, parameters and checkpoints in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from uuid import uuid4

from annotated_types import Ge, Le

from hooks.hook import Hook, Priority, Ranks
from hooks.logs.curves import Curves
from hooks.logs.hyperparameters import flatten
from hooks.logs.outbox import Outbox
from hooks.logs.windows import Size, Statistic
from hooks.recent import RECENT
from hooks.rhythm import paced_by
from hooks.state import State

if TYPE_CHECKING:
    from wandb import Run


@dataclass
class WandB(Hook):
    """Sends curves, metrics and the experiment's hyperparameters to Weights & Biases; the newest checkpoint's path is in
    the summary.

    Runs on the master; needs the extra `wandb`. All is sent by a thread of its own, so that no step waits for the
    server, and a failure is logged and never ends the run. Curves are those that the tensorboard hook draws. Their axis
    is the column `step`, the optimizer step, and not W&B's count of messages, so that a resumed run goes on in its W&B run
    at its own steps; `epoch`, `iteration` and `samples` are columns, too. W&B takes nothing back: steps that are done
    again have two values. Source: MMEngine WandbVisBackend (which leaves the axis to W&B).
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
    interval: Annotated[int, Ge(1), Le(RECENT)] = 50
    """Training iterations between two points; there is one more for what is left as training's phase ends."""
    window: Size = "line"
    """What loss, times and gradient norms are averaged over: `line` (since the point before), a number of iterations,
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Statistics of columns by a name of their own, such as `slowest: {column: step_s, method: max, window: epoch}`."""
    wait_s: Annotated[float, Ge(0)] = 30.0
    """Seconds to wait at the end of the run for what is still to be sent."""

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER
    best_effort: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._curves = Curves(self.window, self.statistics)
        self._outbox: Outbox | None = None
        self._run: Run | None = None
        self._run_id = uuid4().hex[:8]

    def on_start(self, state: State) -> None:
        if find_spec("wandb") is None:
            raise ImportError("the wandb hook needs Weights & Biases, which is not installed: pip install 'hookyard[wandb]'")
        state.artifacts.mkdir(parents=True, exist_ok=True)
        # W&B makes its own folder `wandb` in it.
        self._about: dict[str, Any] = {
            "dir": str(state.artifacts),
            "project": self.project or str(state.config.get("name") or state.name),
            "name": state.name,
            "config": flatten(state.config),
        }
        self._outbox = Outbox(self.name or "wandb")
        self._outbox.put(partial(self._log, {}))

    def on_phase_start(self, state: State) -> None:
        self._curves.begin(state)

    @paced_by("interval")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self._send(state, self._curves.point(state))

    def on_phase_end(self, state: State) -> None:
        self._send(state, {**self._curves.rest(state), **self._curves.metrics(state)})

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._send(state, self._curves.reported(state, metrics))

    def on_saved(self, state: State, path: str) -> None:
        self._put(partial(self._summarize, "checkpoint", path))

    def on_end(self, state: State) -> None:
        self._end(0)

    def on_exception(self, state: State, error: BaseException) -> None:
        self._end(1)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state["run_id"]
        self._curves.load_state_dict(state["curves"])

    def _send(self, state: State, values: Mapping[str, float]) -> None:
        if values:
            place = {"step": state.step, "epoch": state.epoch, "iteration": state.iteration, "samples": state.samples}
            self._put(partial(self._log, {**place, **values}))

    def _put(self, job: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(job)

    def _end(self, exit_code: int) -> None:
        if self._outbox is not None:
            self._outbox.put(partial(self._finish, exit_code))
            self._outbox.close(self.wait_s)
            self._outbox = None

    # In the outbox's thread

    def _connect(self) -> Run:
        """The W&B run: a new one, or that of the checkpoint."""
        if self._run is None:
            import wandb

            run = wandb.init(
                **self._about,
                id=self._run_id,
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

    def _log(self, values: Mapping[str, float]) -> None:
        run = self._connect()
        if values:
            run.log(dict(values))

    def _summarize(self, name: str, value: str) -> None:
        self._connect().summary[name] = value

    def _finish(self, exit_code: int) -> None:
        import wandb

        self._connect().finish(exit_code=exit_code)
        # W&B's own process may write the files of an offline run a moment later, when they are on their way elsewhere.
        wandb.teardown()
