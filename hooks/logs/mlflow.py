"""Curves, parameters and checkpoints in MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from time import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

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
    from mlflow.tracking import MlflowClient

FOLDER = "mlflow"
_NO_KEY = re.compile(r"[^\w./ :-]")
_PARAMS, _METRICS, _LONGEST = 100, 1000, 6000
"""What MLflow takes in one request, and the longest value of a parameter."""

T = TypeVar("T")


@dataclass
class MLflow(Hook):
    """Sends curves, metrics and the experiment's hyperparameters to MLflow; the newest checkpoint's path is a tag.

    Runs on the master; needs the extra `mlflow`. All is sent by a thread of its own, so that no step waits for the
    server, and a failure is logged and never ends the run. Curves are those that the tensorboard hook draws, over
    optimizer steps; `epoch`, `iteration` and `samples` are curves, too. A resumed run goes on in the MLflow run of its
    checkpoint, at its own steps; MLflow takes nothing back, so that steps that are done again have two values, of which the
    later has the later timestamp. Source: MMEngine MLflowVisBackend.
    """

    tracking_uri: str | None = None
    """The server or database; else the environment's MLFLOW_TRACKING_URI, else a SQLite file under `mlflow/`."""
    experiment: str | None = None
    """The MLflow experiment; else the experiment's own name. The MLflow run has the run's name."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the MLflow run."""
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
        self._client: MlflowClient | None = None
        self._run_id: str | None = None

    def on_start(self, state: State) -> None:
        if find_spec("mlflow") is None:
            raise ImportError("the mlflow hook needs MLflow, which is not installed: pip install 'hookyard[mlflow]'")
        folder = state.artifacts / FOLDER
        self._uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        if self._uri.startswith(f"sqlite:///{folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        self._names = self.experiment or str(state.config.get("name") or state.name), state.name
        self._params = flatten(state.config)
        self._outbox = Outbox(self.name or "mlflow")
        self._outbox.put(partial(self._log, {}, 0, 0))

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
        self._put(partial(self._tag, "checkpoint", path))

    def on_end(self, state: State) -> None:
        self._end("FINISHED")

    def on_exception(self, state: State, error: BaseException) -> None:
        self._end("FAILED")

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state["run_id"]
        self._curves.load_state_dict(state["curves"])

    def _send(self, state: State, values: Mapping[str, float]) -> None:
        if values:
            place = {"epoch": state.epoch, "iteration": state.iteration, "samples": state.samples}
            self._put(partial(self._log, {**values, **place}, state.step, int(1000 * time())))

    def _put(self, job: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(job)

    def _end(self, status: str) -> None:
        if self._outbox is not None:
            self._outbox.put(partial(self._terminate, status))
            self._outbox.close(self.wait_s)
            self._outbox = None

    # In the outbox's thread

    def _connect(self) -> tuple[MlflowClient, str]:
        """The client and the run: the checkpoint's where there is one, else a new one."""
        if self._client is None or self._run_id is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self._uri)
            self._run_id = self._go_on(client) or self._create(client)
            self._client = client
        return self._client, self._run_id

    def _go_on(self, client: MlflowClient) -> str | None:
        from mlflow.exceptions import MlflowException

        if self._run_id is None:
            return None
        try:
            client.update_run(self._run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # a database of its own that was left on another machine
                return None
            raise
        return self._run_id

    def _create(self, client: MlflowClient) -> str:
        from mlflow.entities import Param

        experiment_name, run_name = self._names
        experiment = client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(experiment_name)
        run_id: str = client.create_run(experiment_id, tags=dict(self.tags), run_name=run_name).info.run_id
        params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in self._params.items()]
        for some in _chunks(params, _PARAMS):
            client.log_batch(run_id, params=some)
        return run_id

    def _log(self, values: Mapping[str, float], step: int, timestamp: int) -> None:
        from mlflow.entities import Metric

        client, run_id = self._connect()
        for some in _chunks([Metric(_key(name), value, timestamp, step) for name, value in values.items()], _METRICS):
            client.log_batch(run_id, metrics=some)

    def _tag(self, name: str, value: str) -> None:
        client, run_id = self._connect()
        client.set_tag(run_id, name, value)

    def _terminate(self, status: str) -> None:
        client, run_id = self._connect()
        client.set_terminated(run_id, status)


def _key(name: str) -> str:
    """A name as MLflow allows it."""
    return _NO_KEY.sub("_", name)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
