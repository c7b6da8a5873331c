"""Policy gradients on a simulated cart with a pole: a task with a loop of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator import Task, TrainingSession

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
"""Metres, kilograms and newtons, as Barto, Sutton and Anderson (1983) have them."""
LONGEST = 200
"""Pushes after which an episode is over though the pole stands."""


def pushed(carts: Tensor, to_the_right: Tensor) -> Tensor:
    """Carts (n, 4), each its place, speed, angle of the pole and that one's speed, a fiftieth of a
    second after a push."""
    place, speed, angle, spin = carts.unbind(1)
    force, sine, cosine = FORCE * (2 * to_the_right - 1), angle.sin(), angle.cos()
    common = (force + POLE * HALF_LENGTH * spin**2 * sine) / (CART + POLE)
    falls = (GRAVITY * sine - cosine * common) / (
        HALF_LENGTH * (4 / 3 - POLE * cosine**2 / (CART + POLE))
    )
    accelerates = common - POLE * HALF_LENGTH * falls * cosine / (CART + POLE)
    return torch.stack(
        [
            place + SECONDS * speed,
            speed + SECONDS * accelerates,
            angle + SECONDS * spin,
            spin + SECONDS * falls,
        ],
        dim=1,
    )


def stand(carts: Tensor) -> Tensor:
    """Return which carts are within 2.4 metres, with poles within 12 degrees."""
    return (carts[:, 0].abs() < 2.4) & (carts[:, 2].abs() < 0.2095)


@dataclass
class CartPole(Task):
    """Learns to keep a pole upright by REINFORCE, with the mean of the other carts' returns as the
    baseline."""

    hidden: Annotated[int, Gt(0)] = 32
    lr: Annotated[float, Gt(0)] = 0.02
    carts: Annotated[int, Gt(1)] = 16
    """Carts that each rank simulates at a time."""
    updates: Annotated[int, Gt(0)] = 10
    """Updates of the policy between two reports."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 2))

    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        policy = self.model().to(session.device)
        trained = DistributedDataParallel(policy) if session.world_size > 1 else policy
        optimizer = torch.optim.Adam(policy.parameters(), self.lr)
        if not session.restore(model=policy, optimizer=optimizer):
            torch.manual_seed(
                session.config["seed"] + session.rank
            )  # each rank's carts are its own from here on
        while True:
            stood = 0.0
            for _ in range(self.updates):
                seen, pushes, lasted = self.episodes(policy, session.device)
                gains = (lasted - (lasted.sum() - lasted) / (self.carts - 1)) / LONGEST
                chances = trained(seen).log_softmax(1).gather(1, pushes[:, None])[:, 0]
                # The carts that still stood at each push, in the order in which they were seen.
                weights = torch.cat([gains[lasted > moment] for moment in range(int(lasted.max()))])
                loss = -(chances * weights).sum() / self.carts
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.record(batch_size=len(seen), loss=loss, lasted=lasted.mean())
                stood += float(lasted.mean())
                if session.stop_requested:
                    return
            yield {"train/lasted": stood / self.updates}

    @torch.no_grad()
    def episodes(self, policy: nn.Module, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Let every cart go until its pole falls; return the observations (m, 4), the pushes (m,),
        and the steps that each cart lasted (n,)."""
        carts = torch.rand(self.carts, 4, device=device) * 0.1 - 0.05
        lasted, numbers = (
            torch.zeros(self.carts, device=device),
            torch.arange(self.carts, device=device),
        )
        seen, pushes = [], []
        for _ in range(LONGEST):
            right = torch.distributions.Categorical(logits=policy(carts)).sample()
            seen.append(carts)
            pushes.append(right)
            lasted[numbers] += 1
            carts = pushed(carts, right)
            numbers, carts = numbers[stand(carts)], carts[stand(carts)]
            if not len(carts):
                break
        return torch.cat(seen), torch.cat(pushes), lasted
