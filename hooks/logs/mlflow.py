"""MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from hooks.logs.shared.hyperparameters import flatten_config
from hooks.logs.shared.tracker import Tracker
from hooks.matrix import find_image
from hooks.media import MediaEntry
from hooks.state import State

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FOLDER = "mlflow"
_TAG = "hookyard.run_id"
"""Tag of an MLflow run by which a resumed run finds it. MLflow's own ID is not known before the
server has answered, and a checkpoint may be saved earlier."""
_ESCAPED = re.compile(
    r"[^\w./ :-]"
    r"|_(?=x[0-9A-F]{2,}(?:_|\W))"  # could look like the code of a character
    r"|\A/|/(?=/|\Z)"  # as in a//b, which MLflow refuses, as it would be the file of a/b
    r"|\A\.(?=\.)|(?<![^/])\.(?=\.?(?:/|\Z))"  # as in a/../b
)
"""Characters of a name that are written as their codes."""
# Limits of MLflow.
_PARAMS = 100
"""Parameters in one request."""
_METRICS = 1000
"""Metrics in one request."""
_LONGEST = 6000
"""Characters of a parameter's value."""
_LONGEST_KEY = 250
"""Characters of a name."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Target:
    """Where MLflow keeps runs."""

    uri: str
    """Server or database."""
    files: str | None = None
    """Folder of the files as a URI; None if the server decides."""


@dataclass
class MLflow(Tracker):
    """Send curves, metrics, hyperparameters, recorded images and tables, and the newest
    checkpoint's path to MLflow.

        mlflow: {tracking_uri: "http://localhost:5000", experiment: digits}

    Needs the extra `mlflow`. A thread sends everything, so no step waits for the server; a failure
    is logged and never ends the run. The curves are those of the tensorboard hook, over optimizer
    steps. A character that MLflow refuses in a name is written as its code, so `val/acc@1` is
    `val/acc_x40_1`. A resumed run continues its MLflow run; repeated steps have two values there.
    Runs on the master. Source: MMEngine MLflowVisBackend.
    """

    tracking_uri: str | None = None
    """Server or database; by default MLFLOW_TRACKING_URI, else a SQLite file under `mlflow/`."""
    experiment: str | None = None
    """MLflow experiment; by default the experiment's name. The MLflow run has the run's name."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the MLflow run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._target = _Target("")
        self._experiment_name = ""
        self._run_name = ""
        self._params: dict[str, Any] = {}
        self._connected: tuple[MlflowClient, str] | None = None
        """The client, and MLflow's ID of the run."""

    def on_start(self, state: State) -> None:
        if find_spec("mlflow") is None:
            raise ImportError(
                "the mlflow hook needs MLflow, which is not installed:"
                " pip install 'hookyard[mlflow]'"
            )
        self._target = _find_target(self.tracking_uri, state)
        self._experiment_name = self.experiment or str(state.config.get("name") or state.name)
        self._run_name = state.name
        self._params = flatten_config(state.config)
        self.open(self.name or "mlflow", state, self._connect)

    # The methods below run in the sender's thread.

    def _connect(self) -> tuple[MlflowClient, str]:
        if self._connected is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self._target.uri)
            experiment_id = self._find_experiment(client)
            reopened = self._reopen(client, experiment_id)
            mlflow_id = reopened or self._create(client, experiment_id)
            self._connected = (client, mlflow_id)
            if reopened is None:
                self._log_params(client, mlflow_id)
        return self._connected

    def _find_experiment(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self._experiment_name)
        if experiment is None:
            return str(client.create_experiment(self._experiment_name, self._target.files))
        return str(experiment.experiment_id)

    def _reopen(self, client: MlflowClient, experiment_id: str) -> str | None:
        """Continue the MLflow run of an earlier attempt, if there is one."""
        runs = client.search_runs([experiment_id], f"tags.`{_TAG}` = '{self.run_id}'")
        if not runs:
            return None
        mlflow_id = str(runs[0].info.run_id)
        client.update_run(mlflow_id, status="RUNNING")
        return mlflow_id

    def _create(self, client: MlflowClient, experiment_id: str) -> str:
        tags = {**self.tags, _TAG: self.run_id}
        run = client.create_run(experiment_id, tags=tags, run_name=self._run_name)
        return str(run.info.run_id)

    def _log_params(self, client: MlflowClient, run_id: str) -> None:
        from mlflow.entities import Param

        params = [
            Param(make_key(name), str(value)[:_LONGEST]) for name, value in self._params.items()
        ]
        for chunk in _split(params, _PARAMS):
            client.log_batch(run_id, params=chunk)

    def log(self, values: Mapping[str, float], position: Mapping[str, int], time_s: float) -> None:
        from mlflow.entities import Metric

        client, run_id = self._connect()
        step = position["step"]
        milliseconds = int(1000 * time_s)
        curves = {**position, **values}
        del curves["step"]
        metrics = [
            Metric(make_key(name), value, milliseconds, step) for name, value in curves.items()
        ]
        for chunk in _split(metrics, _METRICS):
            client.log_batch(run_id, metrics=chunk)

    def log_media(self, entry: MediaEntry, data: bytes) -> None:
        from PIL import Image

        client, run_id = self._connect()
        image = find_image(entry, data)
        if image is None:
            client.log_text(run_id, data.decode(), entry.file)
            return
        key = make_key(entry.name)
        client.log_image(run_id, Image.open(BytesIO(image)), key=key, step=entry.step)

    def note(self, name: str, value: str) -> None:
        client, run_id = self._connect()
        client.set_tag(run_id, name, value)

    def finish(self, *, failed: bool) -> None:
        client, run_id = self._connect()
        status = "FAILED" if failed else "FINISHED"
        client.set_terminated(run_id, status)


def _find_target(tracking_uri: str | None, state: State) -> _Target:
    """Return where MLflow keeps the run, by default in a folder of the run, which is made."""
    folder = state.artifacts / FOLDER
    own_database = f"sqlite:///{folder}/mlflow.db"
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_database
    if not uri.startswith(f"sqlite:///{folder}"):
        return _Target(uri)
    folder.mkdir(parents=True, exist_ok=True)
    # MLflow would put the files into the current folder of this process.
    return _Target(uri, (folder / "artifacts").absolute().as_uri())


def make_key(name: str) -> str:
    """Return a name that MLflow accepts, which is another one for each name."""
    key = _ESCAPED.sub(_escape, name)
    if len(key) < _LONGEST_KEY:  # only those of cut names have the full length
        return key
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{key[: _LONGEST_KEY - 17]}-{digest}"


def _escape(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):02X}_"


def _split(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
