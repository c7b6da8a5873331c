"""PyTorch Lightning's Trainer, which reports by callbacks: a task with a loop of its own.

Needs pytorch-lightning: `pip install "hookyard[demo,pytorch-lightning]"`.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch.utils.data import DataLoader

from experiments.digits import Digits
from orchestrator import TrainingSession


@dataclass
class TrainedByLightning(Digits):
    """Classifies scikit-learn's digits, trained and validated by Lightning's Trainer."""

    lr: Annotated[float, Gt(0)] = 0.05

    def train(
        self, session: TrainingSession, batch_size: int = 32
    ) -> Iterator[Mapping[str, float]]:
        import pytorch_lightning as lightning
        from pytorch_lightning.plugins.environments import TorchElasticEnvironment

        if session.world_size > 1:
            # These tell Lightning that the ranks have been started, each on a node of its own.
            os.environ.update(
                RANK=str(session.rank), WORLD_SIZE=str(session.world_size), LOCAL_RANK="0"
            )
        on_cpu = session.device.type == "cpu"
        lightning.seed_everything(session.config["seed"], verbose=False)
        with tempfile.TemporaryDirectory() as folder:
            saved = Saved(Path(folder, "last.ckpt"))
            trainer = lightning.Trainer(
                max_epochs=session.config["epochs"],
                accelerator="cpu" if on_cpu else "gpu",
                devices=1 if on_cpu else [session.device.index],
                num_nodes=session.world_size,
                strategy="ddp" if session.world_size > 1 else "auto",
                plugins=[TorchElasticEnvironment()] if session.world_size > 1 else None,
                callbacks=[_make_callback(session, saved.path)],
                default_root_dir=folder,
                num_sanity_val_steps=0,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                logger=False,
            )
            module = _make_module(self)
            sets = self.data()
            loaders = [
                DataLoader(sets[phase], batch_size, shuffle=phase == "train")
                for phase in ("train", "val")
            ]
            checkpoint = None
            if session.restore(model=module.model, lightning=saved):
                checkpoint = saved.path
            yield from session.run_in_thread(
                lambda: trainer.fit(module, *loaders, ckpt_path=checkpoint)
            )


class Saved:
    """Lightning's newest checkpoint as a part of ours: the bytes of its file, which rank 0
    writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def state_dict(self) -> dict[str, Any]:
        """Return the content of the file; of a rank that writes none, a zero."""
        content = self.path.read_bytes() if self.path.exists() else b"\0"
        return {"file": torch.frombuffer(bytearray(content), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write the file."""
        self.path.write_bytes(state["file"].numpy().tobytes())


def _make_module(task: TrainedByLightning) -> Any:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]  # its types are not read
        """The task's model, loss and metrics, as Lightning asks for them."""

        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any, place: int) -> Any:
            return task.loss(self.model(batch[0]), batch)

        def validation_step(self, batch: Any, place: int) -> None:
            output = self.model(batch[0])
            means = {
                "val/loss": task.loss(output, batch),
                "val/accuracy": task.metrics(output, batch)["accuracy"].mean(),
            }
            self.log_dict(means, batch_size=len(batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), task.lr, momentum=0.9)

    return Module()


def _make_callback(session: TrainingSession, path: Path) -> Any:
    import pytorch_lightning as lightning

    class SessionCallback(lightning.Callback):  # type: ignore[misc]  # its types are not read
        """Records each batch, and reports where an epoch and its validation are over."""

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, place: int
        ) -> None:
            session.record(
                batch_size=len(batch[1]),
                loss=outputs["loss"],
                lr=trainer.optimizers[0].param_groups[0]["lr"],
            )
            trainer.should_stop = trainer.should_stop or session.stop_requested

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(path)
            metrics = trainer.callback_metrics
            session.report({name: value.item() for name, value in metrics.items() if "/" in name})

    return SessionCallback()
