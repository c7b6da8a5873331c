"""pytorch/examples word_language_model: truncated backpropagation through time, with a state that is carried from
chunk to chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Sampler, SequentialSampler

from orchestrator import Task
from tests.ports.harness import Port, Ranks, Trained

WORDS, WIDTH, BPTT, LR, CLIP, COLUMNS = 20, 8, 5, 20.0, 0.25, 4


class RNNModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(WORDS, WIDTH)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, WORDS)

    def init_hidden(self, columns: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, columns, WIDTH), torch.zeros(2, columns, WIDTH)

    def forward(self, words: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).view(-1, WORDS).log_softmax(1), hidden


def corpus() -> dict[str, Tensor]:
    """Return words in columns (T, COLUMNS), each mostly decided by the one before."""
    generator = torch.Generator().manual_seed(7)
    words = [0]
    for odd in (torch.rand(83 * COLUMNS, generator=generator) < 0.2).tolist():
        words.append(int(torch.randint(WORDS, (), generator=generator)) if odd else (3 * words[-1] + 1) % WORDS)
    columns = torch.tensor(words[1:]).view(COLUMNS, -1).t().contiguous()
    return {"train": columns[:58], "val": columns[58:]}


def get_batch(source: Tensor, i: int) -> tuple[Tensor, Tensor]:
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def raw(ranks: Ranks) -> Trained:
    data = corpus()
    model = ranks.seeded(RNNModel)
    lr, best = LR, None
    trained = Trained(model.state_dict(), {})

    def losses_of(source: Tensor, *, is_training: bool) -> list[tuple[float, int]]:
        losses = []
        hidden: Any = model.init_hidden(COLUMNS)
        for i in range(0, len(source) - 1, BPTT):
            words, targets = get_batch(source, i)
            model.zero_grad()
            output, hidden = model(words, tuple(part.detach() for part in hidden))
            loss = functional.nll_loss(output, targets)
            losses.append((loss.item() * len(words), len(words)))
            if is_training:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-lr)
                trained.record(loss=loss.item(), lr=lr)
        return losses

    for _ in range(5):
        model.train()
        train_losses = losses_of(data["train"], is_training=True)
        trained.optimizer = torch.optim.SGD(model.parameters(), lr=lr).state_dict()
        model.eval()
        with torch.no_grad():
            val_loss = ranks.mean(losses_of(data["val"], is_training=False))
        trained.reports.append({"train/loss": ranks.mean(train_losses), "val/loss": val_loss})
        if best is None or val_loss < best:
            best = val_loss
        else:
            lr /= 4.0
    assert lr < LR
    return trained


class Carried(RNNModel):
    """Carries the state of training from chunk to chunk; as a buffer it is in every checkpoint."""

    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(2, 2, COLUMNS, WIDTH))
        self.hidden_of_val: Any = None

    def carried(self, words: Tensor, *, is_first: bool) -> Any:
        before = self.init_hidden(COLUMNS) if is_first else self.hidden if self.training else self.hidden_of_val
        output, hidden = self(words, tuple(part.clone() for part in before))
        if self.training:
            self.hidden.copy_(torch.stack(hidden).detach())
        else:
            self.hidden_of_val = hidden
        return output


@dataclass
class LanguageModel(Task):
    """A sample is a chunk, and the rows of a batch are its words."""

    def model(self) -> nn.Module:
        return Carried()

    def data(self) -> Any:
        return {
            phase: [(*get_batch(source, i), i == 0) for i in range(0, len(source) - 1, BPTT)]
            for phase, source in corpus().items()
        }

    def sampler(self, dataset: Any, phase: str) -> Sampler[int]:
        return SequentialSampler(dataset)

    def collate(self, samples: list[Any]) -> Any:
        (chunk,) = samples
        return chunk

    def forward(self, model: Any, batch: Any) -> Any:
        words, _, is_first = batch
        return model.carried(words, is_first=is_first)

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.nll_loss(output, batch[1])


EXPERIMENT = {
    "task": LanguageModel,
    "epochs": 5,
    "batch_size": 1,
    "optimizer": {"type": "SGD", "lr": LR},
    "scheduler": {"type": "ReduceLROnPlateau", "factor": 0.25, "patience": 0, "threshold": 0},
    "hooks": {"gradient_clip": {"max_norm": CLIP}, "param_scheduler": {"monitor": "val/loss"}},
}
PORT = Port(EXPERIMENT, raw)
