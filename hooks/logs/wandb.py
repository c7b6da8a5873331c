"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from hooks.logs.shared.hyperparameters import flatten_config
from hooks.logs.shared.tracker import Tracker
from hooks.matrix import find_image
from hooks.media import MediaEntry, read_table
from hooks.state import State

if TYPE_CHECKING:
    from wandb import Run


@dataclass
class WandB(Tracker):
    """Send curves, metrics, hyperparameters, recorded images and tables, and the newest
    checkpoint's path to Weights & Biases.

        wandb: {project: digits, tags: [baseline]}

    Needs the extra `wandb`. A thread sends everything, so no step waits for the server; a failure
    is logged and never ends the run. The curves are those of the tensorboard hook, over the column
    `step` (optimizer steps). A resumed run continues its W&B run; repeated steps have two values
    there. Runs on the master. Source: MMEngine WandbVisBackend.
    """

    project: str | None = None
    """W&B project; by default the experiment's name."""
    entity: str | None = None
    """User or team of the project; by default W&B's."""
    group: str | None = None
    """Name of a group of runs, such as a sweep's."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """`offline` writes files under `wandb/` for `wandb sync`; by default WANDB_MODE, else
    online."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run: Run | None = None

    def on_start(self, state: State) -> None:
        if find_spec("wandb") is None:
            raise ImportError(
                "the wandb hook needs Weights & Biases, which is not installed:"
                " pip install 'hookyard[wandb]'"
            )
        state.artifacts.mkdir(parents=True, exist_ok=True)
        self._about: dict[str, Any] = {
            "dir": str(state.artifacts),
            "project": self.project or str(state.config.get("name") or state.name),
            "name": state.name,
            "config": flatten_config(state.config),
        }
        self.open(self.name or "wandb", state, self._connect)

    # The methods below run in the sender's thread.

    def _connect(self) -> Run:
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
                # Never ask for a key in the terminal.
                settings=wandb.Settings(console="off", silent=True, login_timeout=1),
            )
            run.define_metric("step", hidden=True)
            run.define_metric("*", step_metric="step")
            self._run = run
        return self._run

    def log(self, values: Mapping[str, float], position: Mapping[str, int], time_s: float) -> None:
        self._connect().log({**position, **values})

    def log_media(self, entry: MediaEntry, data: bytes) -> None:
        shown = _make_media(entry, data)
        self._connect().log({"step": entry.step, "epoch": entry.epoch, entry.name: shown})

    def note(self, name: str, value: str) -> None:
        self._connect().summary[name] = value

    def finish(self, *, failed: bool) -> None:
        import wandb

        self._connect().finish(exit_code=int(failed))
        # Wait for W&B's process, which writes the files of an offline run.
        wandb.teardown()


def _make_media(entry: MediaEntry, data: bytes) -> Any:
    """Return the W&B object of an image, a figure or a table."""
    import wandb
    from PIL import Image

    image = find_image(entry, data)
    if image is None:
        return wandb.Table(dataframe=read_table(data))
    return wandb.Image(Image.open(BytesIO(image)))
