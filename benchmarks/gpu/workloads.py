"""Workloads and contestants: the raw loop, Hookyard, and installed peers, all on one resident
batch.

The batch lies on the device, so that the comparison contains no loader and no copy; `loading`
measures these.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.gpu.models import GPT2, perceptron, resnet
from benchmarks.gpu.part import Device
from benchmarks.loop_overhead import IDLE, Discard
from benchmarks.timing import Pause, take_turns
from orchestrator import Task
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import make_experiment
from orchestrator.loop.world import World

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LIGHTNING = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass
class Resident(Task):
    """A task whose batches are one and the same, on the device."""

    device: str = "cpu"
    samples: int = 64
    """In an epoch."""
    small: bool = False

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": range(self.samples)}  # type: ignore[dict-item]  # numbers are samples enough

    def collate(self, samples: list[Any]) -> Any:
        if "_batch" not in vars(self):
            vars(self)["_batch"] = tuple(
                part.to(self.device) for part in self.make_batch(len(samples))
            )
        return vars(self)["_batch"]

    def make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])


@dataclass
class Pictures(Resident):
    """ResNet-50 on pictures of 224 pixels."""

    def model(self) -> nn.Module:
        return resnet((1, 1, 1, 1), 8) if self.small else resnet()

    def make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        pixels = 32 if self.small else 224
        pictures = torch.randn(size, 3, pixels, pixels).to(memory_format=torch.channels_last)
        return pictures, torch.randint(1000, (size,))


@dataclass
class Tokens(Resident):
    """GPT-2 on blocks of 1,024 tokens."""

    def model(self) -> GPT2:
        return GPT2(128, 64, 2, 2, 32) if self.small else GPT2()

    def make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        vocabulary, context = (128, 32) if self.small else (50257, 1024)
        blocks = torch.randint(vocabulary, (size, context + 1))
        return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


@dataclass
class Numbers(Resident):
    """Many small layers, for which the CPU is the limit."""

    def model(self) -> nn.Module:
        return perceptron(32, 3) if self.small else perceptron()

    def make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        width = 32 if self.small else 256
        return torch.randn(size, width), torch.randn(size, width)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.mse_loss(output, batch[1])


@dataclass
class Wide(Numbers):
    """Few layers with many weights, of which a CPU makes a step in a tenth of a second."""

    def model(self) -> nn.Module:
        return perceptron(1024, 12)

    def make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, 1024), torch.randn(size, 1024)


class Bytes(Dataset[Any]):
    """Pictures as bytes, which cost a process little to give."""

    def __init__(self, size: int, pixels: int) -> None:
        self.size, self.picture = size, torch.randint(256, (3, pixels, pixels), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.picture, index % 1000


@dataclass
class Loaded(Pictures):
    """The same network, fed by a DataLoader."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": Bytes(self.samples, 32 if self.small else 224)}

    def collate(self, samples: list[Any]) -> Any:
        return default_collate(samples)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        pictures = batch[0].to(torch.float32, memory_format=torch.channels_last)
        output: Tensor = model(pictures / 255)
        return output


@dataclass(frozen=True)
class Workload:
    """A task, and how it is trained."""

    task: type[Resident]
    device: Device
    batch: int
    steps: int
    """In an epoch, which is one turn."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the experiment, which the raw loop and the peers follow."""

    @cached_property
    def resident_task(self) -> Resident:
        """The task, whose batch all but Hookyard share."""
        return self.task(**self.task_args)

    @property
    def task_args(self) -> dict[str, Any]:
        return {
            "device": str(self.device.torch),
            "samples": self.batch * self.steps,
            "small": not self.device.is_cuda,
        }

    @property
    def precision(self) -> str:
        return str(self.settings.get("precision", "fp32"))

    def autocast(self) -> Any:
        dtype = _DTYPES.get(self.precision)
        return torch.autocast(self.device.torch.type, dtype) if dtype else nullcontext()

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.resident_task.model().to(self.device.torch)
        if self.settings.get("channels_last"):
            # torch's hints have this form from 2.14 on.
            cast(Any, model).to(memory_format=torch.channels_last)
        if self.settings.get("compile"):
            model.compile()
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        arguments = dict(self.settings["optimizer"])
        kind: type[torch.optim.Optimizer] = getattr(torch.optim, arguments.pop("type"))
        return kind(model.parameters(), **arguments)

    def loader(self) -> DataLoader[Any]:
        data: Any = self.resident_task.data()["train"]
        return DataLoader(data, self.batch, shuffle=True, collate_fn=self.resident_task.collate)


Contestant = Callable[[Workload, int, Pause], None]
"""Trains for a number of epochs, and calls the pause after each."""


def raw(workload: Workload, epochs: int, pause: Pause) -> None:
    model, task, loader = workload.model(), workload.resident_task, workload.loader()
    optimizer = workload.optimizer(model)
    for _ in range(epochs):
        for batch in loader:
            with workload.autocast():
                loss = task.loss(task.forward(model, batch), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        workload.device.wait()
        pause()


def hookyard(workload: Workload, epochs: int, pause: Pause, folder: str = "", **more: Any) -> None:
    """Train as a worker does, with the default hooks: a row for each iteration, flushed to
    files."""
    experiment = make_experiment(
        {
            "name": "gpu",
            "task": f"{__name__}:{workload.task.__name__}",
            "task_args": workload.task_args,
            "epochs": epochs,
            "batch_size": workload.batch,
            "loader": {"pin_memory": False},
            "workers": {"gpu": workload.device.is_cuda},
            "hooks": IDLE,
            **workload.settings,
            **more,
        }
    )
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        assignment = Assignment(experiment.source, place)
        for _ in Session(
            assignment, World(device=workload.device.torch), display=Discard(), end_hung=None
        ).reports():
            workload.device.wait()
            pause()


def accelerate(workload: Workload, epochs: int, pause: Pause) -> None:
    from accelerate import Accelerator

    task, model = workload.resident_task, workload.model()
    accelerator = Accelerator(
        cpu=not workload.device.is_cuda,
        mixed_precision="no" if workload.precision == "fp32" else workload.precision,
    )
    model, optimizer, loader = accelerator.prepare(
        model, workload.optimizer(model), workload.loader()
    )
    for _ in range(epochs):
        for batch in loader:
            with accelerator.autocast():
                loss = task.loss(task.forward(model, batch), batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        workload.device.wait()
        pause()


def lightning(workload: Workload, epochs: int, pause: Pause) -> None:
    """Everything off."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = workload.model()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return workload.resident_task.loss(
                workload.resident_task.forward(self.model, batch), batch
            )

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return workload.optimizer(self.model)

    class EndOfEpoch(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            workload.device.wait()
            pause()

    pl.Trainer(
        accelerator="gpu" if workload.device.is_cuda else "cpu",
        devices=1,
        max_epochs=epochs,
        precision=_LIGHTNING[workload.precision],
        callbacks=[EndOfEpoch()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(Module(), workload.loader())


PEERS = {"Lightning": ("pytorch_lightning", lightning), "Accelerate": ("accelerate", accelerate)}


def side_by_side(
    workload: Workload, rounds: int, contestants: Mapping[str, Contestant]
) -> dict[str, list[float]]:
    """Seconds of each epoch of each contestant, in turns, and of the peers that are installed."""
    installed = {name: train for name, (module, train) in PEERS.items() if find_spec(module)}
    trains = {**contestants, **installed}
    return take_turns(
        {name: partial(train, workload, rounds + 1) for name, train in trains.items()}, rounds
    )
