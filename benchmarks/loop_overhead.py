"""Cost of a hooked iteration, compared with a raw PyTorch loop and with peers.

Everybody trains the same 64-64-10 perceptron on the same digits with the same batches of 32, SGD
and DataLoader, on one thread. A turn is one epoch, and epochs go round robin. The claim: with
default hooks, EMA, clipping, a NaN guard and TensorBoard, an iteration takes at most 1.10 times the
raw one plus the raw cost of EMA and clipping.

    python -m benchmarks.loop_overhead [rounds]
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.perceptron import make_data, make_model
from benchmarks.timing import Pause, print_table, ratio, take_turns
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS
from orchestrator.loop.world import World

BATCH = 32
LR = 0.1
DECAY = 0.99
MAX_NORM = 1.0


def make_loader(data: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH, shuffle=True)


def raw(data: Dataset[Any], epochs: int, pause: Pause) -> None:
    model, loader = make_model(), make_loader(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(epochs):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        pause()


def raw_with_ema_and_clipping(data: Dataset[Any], epochs: int, pause: Pause) -> None:
    model, loader = make_model(), make_loader(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    parameters: list[torch.Tensor] = [*model.parameters()]
    averages = [parameter.detach().clone() for parameter in parameters]
    for _ in range(epochs):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(averages, parameters, 1 - DECAY)
            optimizer.zero_grad()
        pause()


def ignite(data: Dataset[Any], epochs: int, pause: Pause) -> None:
    from ignite.engine import Engine, Events

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(engine: Engine, batch: Any) -> Tensor:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    engine = Engine(step)
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: pause())
    engine.run(make_loader(data), max_epochs=epochs)


def accelerate(data: Dataset[Any], epochs: int, pause: Pause) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=LR), make_loader(data)
    )
    for _ in range(epochs):
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        pause()


def lightning(data: Dataset[Any], epochs: int, pause: Pause, folder: str = "") -> None:
    """Everything off without a folder; with one, TensorBoard and checkpoints as by default, and EMA
    and clipping."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import EMAWeightAveraging
    from pytorch_lightning.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = functional.cross_entropy(self.model(batch[0]), batch[1])
            if folder:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=LR)

    class EndOfEpoch(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            pause()

    full: dict[str, Any] = (
        {"logger": TensorBoardLogger(folder), "gradient_clip_val": MAX_NORM}
        if folder
        else {"logger": False}
    )
    average = [EMAWeightAveraging(decay=DECAY)] if folder else []
    pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=[*average, EndOfEpoch()],
        enable_progress_bar=False,
        enable_checkpointing=bool(folder),
        enable_model_summary=False,
        default_root_dir=folder or None,
        **full,
    ).fit(Module(), make_loader(data))


def mmengine(
    data: Dataset[Any], epochs: int, pause: Pause, folder: str, full: bool = False
) -> None:
    """With its default hooks; `full` adds EMAHook, clipping and TensorBoard."""
    import mmengine.hooks as mm_hooks
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def forward(self, images: Tensor, labels: Tensor, mode: str = "loss") -> dict[str, Tensor]:
            return {"loss": functional.cross_entropy(self.layers(images), labels)}

    class EndOfEpoch(mm_hooks.Hook):
        priority = "LOWEST"

        def after_train_epoch(self, runner: Runner) -> None:
            pause()

    extra: dict[str, Any] = (
        {"visualizer": {"type": "Visualizer", "vis_backends": [{"type": "TensorboardVisBackend"}]}}
        if full
        else {}
    )
    average = [{"type": "EMAHook", "momentum": 1 - DECAY}] if full else []
    Runner(
        model=Model(),
        work_dir=folder,
        experiment_name=f"mmengine-{full}",
        train_dataloader={
            "dataset": data,
            "batch_size": BATCH,
            "sampler": {"type": "DefaultSampler", "shuffle": True},
            "collate_fn": {"type": "default_collate"},
            "num_workers": 0,
        },
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper={
            "optimizer": {"type": "SGD", "lr": LR},
            "clip_grad": {"max_norm": MAX_NORM} if full else None,
        },
        custom_hooks=[*average, EndOfEpoch()],
        log_level="ERROR",
        **extra,
    ).train()


class Discard:
    """Shows nothing, as the driver's terminal is no part of an iteration."""

    def line(self, text: str) -> None: ...

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None: ...


def hookyard(
    data: Dataset[Any],
    epochs: int,
    pause: Pause,
    folder: str,
    hooks: Mapping[str, Any],
    task: str = "benchmarks.perceptron:Perceptron",
    **optimizers: Any,
) -> None:
    """Train as a worker does: rows recorded and flushed, checkpoints written, all under
    `folder`."""
    written = {
        "name": "overhead",
        "task": task,
        "epochs": epochs,
        "batch_size": BATCH,
        "hooks": hooks,
    }
    experiment = make_experiment(
        {**written, **(optimizers or {"optimizer": {"type": "SGD", "lr": LR}})}
    )
    for _ in Session(Assignment(experiment.source, folder), World(), display=Discard()).reports():
        pause()


IDLE = {"checkpoint": {"every": 0, "save_last": False}}
"""The checkpoint hook looks on and writes nothing: writing is no part of an iteration, for the
peers neither."""
NO_HOOKS = dict.fromkeys(DEFAULT_HOOKS)
MORE_HOOKS = {
    **IDLE,
    "ema": {"decay": DECAY},
    "gradient_clip": {"max_norm": MAX_NORM},
    "nan_guard": {},
    "tensorboard": {},
}


def contestants(folder: Path) -> dict[str, Callable[[Dataset[Any], int, Pause], None]]:
    def with_folder(
        train: Callable[..., None], name: str, **options: Any
    ) -> Callable[[Dataset[Any], int, Pause], None]:
        return lambda data, epochs, pause: train(
            data, epochs, pause, folder=str(folder / name), **options
        )

    return {
        "raw": raw,
        "raw, EMA and clipping": raw_with_ema_and_clipping,
        "Hookyard, no hooks": with_folder(hookyard, "bare", hooks=NO_HOOKS),
        "Hookyard, default hooks": with_folder(hookyard, "default", hooks=IDLE),
        "Hookyard, default hooks, EMA, clipping, NaN guard, TensorBoard": with_folder(
            hookyard, "more", hooks=MORE_HOOKS
        ),
        "Ignite, bare engine": ignite,
        "Accelerate": accelerate,
        "Lightning, everything off": lightning,
        "Lightning, TensorBoard, EMA, clipping": with_folder(lightning, "lightning"),
        "MMEngine, default hooks": with_folder(mmengine, "mmengine"),
        "MMEngine, default hooks, EMA, clipping, TensorBoard": with_folder(
            mmengine, "mmengine-full", full=True
        ),
    }


def print_beside_raw(
    title: str,
    raw: Callable[[Pause], None],
    hooked: Callable[..., None],
    rounds: int,
    iterations: int,
) -> None:
    """Time our loop without hooks and with the default hooks against a raw loop, with a number of
    iterations per round; `hooked` takes `folder` and `hooks`."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = take_turns(
            {
                "raw": raw,
                "Hookyard, no hooks": partial(hooked, folder=f"{folder}/bare", hooks=NO_HOOKS),
                "Hookyard, default hooks": partial(hooked, folder=f"{folder}/default", hooks=IDLE),
            },
            rounds,
        )
    rows = [
        (name, f"{median(times) / iterations * 1e6:.0f}", f"{ratio(times, seconds['raw']):.2f}")
        for name, times in seconds.items()
    ]
    print_table(
        f"{title} ({rounds} rounds of {iterations} each, in turns)", ["loop", "us", "to raw"], rows
    )


def main(rounds: int = 15) -> None:
    data = make_data()
    iterations = len(make_loader(data))

    def bound(train: Callable[[Dataset[Any], int, Pause], None]) -> Callable[[Pause], None]:
        return lambda pause: train(data, rounds + 1, pause)

    with tempfile.TemporaryDirectory() as folder:
        seconds = take_turns(
            {name: bound(train) for name, train in contestants(Path(folder)).items()}, rounds
        )
    rows = [
        (name, f"{median(times) / iterations * 1e6:.0f}", f"{ratio(times, seconds['raw']):.2f}")
        for name, times in seconds.items()
    ]
    bound_by = (
        1.10 * median(seconds["raw"])
        + median(seconds["raw, EMA and clipping"])
        - median(seconds["raw"])
    )
    rows.append(
        (
            "the claim's bound for the last of Hookyard's",
            f"{bound_by / iterations * 1e6:.0f}",
            f"{bound_by / median(seconds['raw']):.2f}",
        )
    )
    print_table(
        f"One training iteration ({rounds} epochs of {iterations} each, in turns)",
        ["loop", "us", "to raw"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
