"""Hugging Face's Trainer, which reports by callbacks: a task with a loop of its own.

Needs transformers and accelerate: `pip install "hookyard[demo,transformers]"`.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor

from experiments.gpt import GPT, Sources
from orchestrator import TrainingSession


@dataclass
class TrainedByTrainer(GPT):
    """Predicts the next byte of a program, trained and evaluated by transformers' Trainer."""

    lr: Annotated[float, Gt(0)] = 2e-3
    weight_decay: float = 0.1

    def train(self, session: TrainingSession, batch_size: int = 8) -> Iterator[Mapping[str, float]]:
        from transformers import PrinterCallback, Trainer, TrainingArguments

        if session.world_size > 1:
            # These tell accelerate that the ranks have been started.
            os.environ.update(
                RANK=str(session.rank),
                WORLD_SIZE=str(session.world_size),
                LOCAL_RANK=str(session.local_rank),
            )
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                num_train_epochs=session.config["epochs"],
                per_device_train_batch_size=batch_size,
                per_device_eval_batch_size=batch_size,
                learning_rate=self.lr,
                weight_decay=self.weight_decay,
                lr_scheduler_type="cosine",
                logging_steps=1,
                eval_strategy="epoch",
                save_strategy="epoch",
                save_total_limit=1,
                seed=session.config["seed"],
                use_cpu=session.device.type == "cpu",
                disable_tqdm=True,
                report_to=[],
            )
            model = self.model()
            trainer = Trainer(
                model,
                arguments,
                train_dataset=self.list_blocks("train"),
                eval_dataset=self.list_blocks("val"),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(_make_callback(session))
            saved = Saved(Path(folder))
            generators = Saved(Path(folder), "rng_state*")
            checkpoint = None
            if session.restore(model=model, trainer=saved, per_rank={"generators": generators}):
                checkpoint = str(saved.find_newest())
            yield from session.run_in_thread(
                lambda: trainer.train(resume_from_checkpoint=checkpoint)
            )

    def list_blocks(self, phase: str) -> list[dict[str, Tensor]]:
        """Return blocks of bytes as the Trainer takes them."""
        blocks = []
        for block in Sources(self.list_files(phase), self.context):
            blocks.append({"input_ids": block[:-1], "labels": block[:-1]})
        return blocks


class Saved:
    """The Trainer's newest checkpoint, or some of its files, as a part of ours: each file's bytes,
    by its name."""

    def __init__(self, folder: Path, pattern: str = "*") -> None:
        self.folder = folder
        self.pattern = pattern

    def find_newest(self) -> Path:
        """Return the folder of the last step that was saved."""
        folders = self.folder.glob("checkpoint-*")
        return max(folders, key=lambda path: int(path.name.rpartition("-")[2]))

    def state_dict(self) -> dict[str, Any]:
        """Return the content of the files of the newest checkpoint."""
        newest = self.find_newest()
        files = {}
        for path in newest.glob(self.pattern):
            files[path.name] = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        return {"name": newest.name, "files": files}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write the files."""
        folder = self.folder / state["name"]
        folder.mkdir(exist_ok=True)
        for name, content in state["files"].items():
            (folder / name).write_bytes(content.numpy().tobytes())


def _make_callback(session: TrainingSession) -> Any:
    from transformers import TrainerCallback

    class SessionCallback(TrainerCallback):  # type: ignore[misc]  # its types are not read
        """Records each step, and reports where the Trainer has saved, which it does last in an
        epoch."""

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, float], **others: Any
        ) -> None:
            if "loss" in logs:
                session.record(
                    batch_size=args.train_batch_size,
                    loss=logs["loss"],
                    lr=logs["learning_rate"],
                    grad_norm=logs["grad_norm"],
                )

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = control.should_training_stop or session.stop_requested

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            of_epoch = [entry for entry in state.log_history if entry["epoch"] > state.epoch - 1]
            losses = [entry["loss"] for entry in of_epoch if "loss" in entry]
            session.report(
                {"train/loss": sum(losses) / len(losses), "val/loss": of_epoch[-1]["eval_loss"]}
            )

    return SessionCallback()
