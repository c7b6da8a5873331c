"""The base of loops that run a task with hooks. Runs in workers."""

from collections.abc import Generator, Sequence
from functools import partial

from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.model.torch_settings import torch_settings
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.training import Training


class HookedLoop(BaseLoop[HookedRun]):
    """A loop that owns a training, with its model and data, and its runs: usually one."""

    def __init__(self, training: Training, runs: Sequence[HookedRun]) -> None:
        self.task = training.task
        self.experiment = training.experiment
        self.training = training
        super().__init__(runs)

    def run(self) -> Generator[Report, None, None]:
        # Between reports, another run with other settings may be running in this process.
        return produce_within(partial(torch_settings, self.experiment), super().run())

    def _close(self) -> None:
        self.training.close()
