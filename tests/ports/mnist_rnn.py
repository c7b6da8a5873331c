"""pytorch/examples mnist_rnn: the rows of an image through an LSTM or a GRU, trained as in mnist."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from tests.ports import mnist
from tests.ports.harness import Port


class Net(nn.Module):
    def __init__(self, cell: str = "LSTM") -> None:
        super().__init__()
        self.rnn: nn.RNNBase = getattr(nn, cell)(8, 16, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(16)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16, 12), nn.Linear(12, 10)

    def forward(self, images: Tensor) -> Any:
        output = self.rnn(images.squeeze(1))[0][:, -1]
        output = self.fc1(self.dropout1(self.batchnorm(output))).relu()
        return self.fc2(self.dropout2(output)).log_softmax(1)


@dataclass
class MnistRnn(mnist.Mnist):
    cell: Literal["LSTM", "GRU"] = "LSTM"

    def model(self) -> nn.Module:
        return Net(self.cell)


EXPERIMENT = {**mnist.EXPERIMENT, "optimizer": {"type": "Adadelta", "lr": 0.1}}
LSTM = Port({**EXPERIMENT, "task": MnistRnn()}, partial(mnist.raw, make=Net, lr=0.1))
GRU = Port({**EXPERIMENT, "task": MnistRnn("GRU")}, partial(mnist.raw, make=partial(Net, "GRU"), lr=0.1))
