"""Ranks that stand still on Ray, and what Ctrl-C leaves: no process of the run."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.ray

TASK = """
import time
from dataclasses import dataclass
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from orchestrator import Task

@dataclass
class Stands(Task):
    def __post_init__(self):
        self.calls = 0
    def model(self):
        return nn.Linear(2, 2)
    def data(self):
        return {"train": TensorDataset(torch.ones(64, 2))}
    def forward(self, model, batch):
        self.calls += 1
        if self.calls == 3 and dist.get_rank() == 1:
            time.sleep(1000)
        return model(batch[0])
    def loss(self, output, batch):
        return output.mean()
"""
YAML = "task: stands:Stands\nname: stands\nepochs: 1\nbatch_size: 4\nworkers: {count: 2}\nhang: {after: 2}\n"


def test_hang_is_reported_and_second_interrupt_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "stands.py").write_text(TASK)
    (tmp_path / "stands.yaml").write_text(YAML)
    command = [sys.executable, "-m", "orchestrator", "run", "stands.yaml", "--engine", "gang"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": ""},
    ) as driver:
        assert driver.stderr is not None
        told = next(line for line in driver.stderr if "has made no progress" in line)
        place = r"train, epoch 1, 2 of 8 iterations done"
        assert re.search(
            rf"rank 1 on .* has made no progress since .*: {place} \(.*stands.py:\d+, in forward\); rank 0 waits for"
            r" that",
            told,
        )
        started = psutil.Process(driver.pid).children(recursive=True)
        assert any("raylet" in process.name() for process in started)
        driver.send_signal(signal.SIGINT)
        assert "Press Ctrl-C again to exit at once" in next(
            line for line in driver.stderr if "Ctrl-C" in line
        )
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=20) == 130
        assert "Ended " in driver.stderr.read()
    until = time.monotonic() + 10
    while [
        process
        for process in started
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]:
        assert time.monotonic() < until, f"these outlive their driver: {started}"
        time.sleep(0.1)
