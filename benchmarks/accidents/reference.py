"""The loop that a case would be in plain PyTorch, written by hand."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.accidents.cases import OPTIMIZERS, SCHEDULERS, Case
from benchmarks.accidents.programs import MODELS, datasets, loss
from orchestrator.testing.differences import copy_tree


@dataclass
class Trained:
    """Progress of a training."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    val_losses: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    """Weights with the least loss in validation."""


def train(case: Case) -> Trained:
    """Train a case without an accident."""
    return _Training(case).run()


class _Training:
    def __init__(self, case: Case) -> None:
        self.case = case
        _seed(case.seed)
        self.data = datasets(case.program, case.train, case.val, case.stream)
        self.model = MODELS[case.program]()
        self.optimizer = getattr(optim, case.optimizer)(
            self.model.parameters(), **OPTIMIZERS[case.optimizer]
        )
        steps = -(-case.iterations // case.accumulate) if case.unit == "step" else 1
        self.scheduler = _scheduler(case, self.optimizer, case.epochs * steps)
        self.averages: dict[str, torch.Tensor] = {}
        self.trained = Trained(self.model.state_dict(), {})
        _seed(case.seed)

    def run(self) -> Trained:
        case, step, validated_at = self.case, 0, -1
        count, unit = case.validate_every.split()
        stream = self._passes()
        for epoch in range(case.epochs):
            self.model.train()
            for index, batch in enumerate(self._epoch(epoch, stream)):
                self.trained.rates.append(self.optimizer.param_groups[0]["lr"])
                if not self._iterate(index, batch):
                    continue
                step += 1
                self._average()
                if self.scheduler and case.unit == "step":
                    self.scheduler.step()
                if unit.startswith("step") and step % int(count) == 0:
                    self._validate()
                    validated_at = step
            if self.scheduler and case.unit == "epoch":
                self.scheduler.step()
            is_due = unit.startswith("epoch") and (epoch + 1) % int(count) == 0
            if is_due or (epoch + 1 == case.epochs and validated_at != step):
                self._validate()
        self.trained.optimizer = self.optimizer.state_dict()
        return self.trained

    def _iterate(self, index: int, batch: Any) -> bool:
        """Train on a batch; return whether that ended an optimizer step."""
        case = self.case
        if case.optimizer == "LBFGS":

            def closure() -> torch.Tensor:
                self.optimizer.zero_grad()
                value = self._loss(batch)
                value.backward()
                return value

            self.trained.losses.append(self.optimizer.step(closure).item())
            return True
        position = index % case.accumulate
        if position == 0:
            self.optimizer.zero_grad()
        group = min(case.accumulate, case.iterations - index + position)
        value = self._loss(batch)
        self.trained.losses.append(value.item())
        (value / group if group > 1 else value).backward()
        if position + 1 < group:
            return False
        if case.max_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), case.max_norm)
        self.optimizer.step()
        return True

    def _loss(self, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.case.is_bf16):
            return loss(self.case.program, self.model(batch[0]), batch[1])

    def _epoch(self, epoch: int, stream: Iterator[Any]) -> Iterator[Any]:
        case = self.case
        if case.stream:
            return (next(stream) for _ in range(case.iterations))
        sampler: Any = DistributedSampler(self.data["train"], 1, 0, seed=case.seed)
        sampler.set_epoch(epoch)
        return iter(
            self._loader(
                self.data["train"], case.batch_size, sampler=sampler, drop_last=case.drop_last
            )
        )

    def _passes(self) -> Iterator[Any]:
        number, dataset = 0, self.data["train"]
        while True:
            dataset.set_epoch(number)
            yield from self._loader(dataset, self.case.batch_size, drop_last=self.case.drop_last)
            number += 1

    def _loader(self, dataset: Any, batch_size: int, **options: Any) -> Any:
        return DataLoader(dataset, batch_size, generator=torch.Generator(), **options)

    @torch.no_grad()
    def _average(self) -> None:
        if not self.case.decay:
            return
        for name, parameter in self.model.named_parameters():
            if name in self.averages:
                self.averages[name].lerp_(parameter, 1 - self.case.decay)
            else:
                self.averages[name] = parameter.detach().clone()

    @torch.no_grad()
    def _validate(self) -> None:
        trained = {
            name: parameter.detach().clone() for name, parameter in self.model.named_parameters()
        }
        self._put(self.averages)
        self.model.eval()
        total = 0.0
        for batch in self._loader(self.data["val"], self.case.val_batch_size):
            total += self._loss(batch).double().item() * len(batch[0])
        self.trained.val_losses.append(total / self.case.val)
        if self.trained.val_losses[-1] < min(self.trained.val_losses[:-1], default=math.inf):
            self.trained.best = copy_tree(dict(self.model.state_dict()))
        self.model.train()
        self._put(trained)

    def _put(self, weights: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _scheduler(case: Case, optimizer: Any, length: int) -> Any:
    if not case.scheduler:
        return None
    if case.scheduler not in ("warm-up", "list"):
        own_length = {"total_steps": length} if case.scheduler == "OneCycleLR" else {}
        return getattr(lr_scheduler, case.scheduler)(
            optimizer, **SCHEDULERS[case.scheduler], **own_length
        )
    rise = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=1)
    rest: Any = lr_scheduler.ExponentialLR(optimizer, 0.8)
    if case.scheduler == "warm-up":
        rest = lr_scheduler.CosineAnnealingLR(optimizer, max(length - 1, 1))
    return lr_scheduler.SequentialLR(optimizer, [rise, rest], [1])
