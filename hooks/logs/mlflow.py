"""MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from hooks.parts.logs.readings import flatten
from hooks.parts.logs.tracker import Tracker
from hooks.state import State

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FOLDER = "mlflow"
_NO_KEY = re.compile(r"[^\w./ :-]")
_PARAMS, _METRICS, _LONGEST = 100, 1000, 6000
"""Limits of MLflow: parameters and metrics in one request, and characters of a parameter."""

T = TypeVar("T")


@dataclass
class MLflow(Tracker):
    """Curves, metrics, hyperparameters and the newest checkpoint's path in MLflow.

        mlflow: {tracking_uri: "http://localhost:5000", experiment: digits}

    Needs the extra `mlflow`. A thread sends everything, so no step waits for the server; a failure is logged and never
    ends the run. The curves are those of the tensorboard hook, over optimizer steps. A resumed run continues its MLflow
    run; repeated steps have two values there. Runs on the master. Source: MMEngine MLflowVisBackend.
    """

    tracking_uri: str | None = None
    """Server or database; by default MLFLOW_TRACKING_URI, else a SQLite file under `mlflow/`."""
    experiment: str | None = None
    """MLflow experiment; by default the experiment's name. The MLflow run has the run's name."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the MLflow run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client: MlflowClient | None = None

    def on_start(self, state: State) -> None:
        if find_spec("mlflow") is None:
            raise ImportError("the mlflow hook needs MLflow, which is not installed: pip install 'hookyard[mlflow]'")
        folder = state.artifacts / FOLDER
        self._uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        if self._uri.startswith(f"sqlite:///{folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        self._names = self.experiment or str(state.config.get("name") or state.name), state.name
        self._params = flatten(state.config)
        self.open(self.name or "mlflow", self._connect)

    # The methods below run in the sender's thread.

    def _connect(self) -> tuple[MlflowClient, str]:
        if self._client is None or self.run_id is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self._uri)
            self.run_id = self._reopen(client) or self._create(client)
            self._client = client
        return self._client, self.run_id

    def _reopen(self, client: MlflowClient) -> str | None:
        """Continue the checkpoint's MLflow run, if there is one."""
        from mlflow.exceptions import MlflowException

        if self.run_id is None:
            return None
        try:
            client.update_run(self.run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # its own database is on another machine
                return None
            raise
        return self.run_id

    def _create(self, client: MlflowClient) -> str:
        from mlflow.entities import Param

        experiment_name, run_name = self._names
        experiment = client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(experiment_name)
        run_id: str = client.create_run(experiment_id, tags=dict(self.tags), run_name=run_name).info.run_id
        params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in self._params.items()]
        for chunk in _chunks(params, _PARAMS):
            client.log_batch(run_id, params=chunk)
        return run_id

    def log(self, values: Mapping[str, float], position: Mapping[str, int], time_s: float) -> None:
        from mlflow.entities import Metric

        client, run_id = self._connect()
        step, ms = position["step"], int(1000 * time_s)
        curves = {**values, **{name: count for name, count in position.items() if name != "step"}}
        metrics = [Metric(_key(name), value, ms, step) for name, value in curves.items()]
        for chunk in _chunks(metrics, _METRICS):
            client.log_batch(run_id, metrics=chunk)

    def note(self, name: str, value: str) -> None:
        client, run_id = self._connect()
        client.set_tag(run_id, name, value)

    def finish(self, *, failed: bool) -> None:
        client, run_id = self._connect()
        client.set_terminated(run_id, "FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return _NO_KEY.sub("_", name)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
