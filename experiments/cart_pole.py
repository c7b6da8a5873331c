"""Policy gradients on a simulated cart with a pole: a task with a loop of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator import Task, TrainingSession

# The cart of Barto, Sutton and Anderson (1983), in metres, kilograms, newtons and seconds.
GRAVITY = 9.8
CART = 1.0
POLE = 0.1
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02
LONGEST = 200
"""Pushes after which an episode is over though the pole stands."""


def push(carts: Tensor, to_the_right: Tensor) -> Tensor:
    """Return the carts a fiftieth of a second after a push.

    Args:
        carts: Place, speed, angle of the pole and its angular speed of each cart, (n, 4).
        to_the_right: 1 for a push to the right, 0 for one to the left, (n,).
    """
    _, speed, angle, angular_speed = carts.unbind(1)
    force = FORCE * (2 * to_the_right - 1)
    sine = angle.sin()
    cosine = angle.cos()
    mass = CART + POLE

    common = (force + POLE * HALF_LENGTH * angular_speed**2 * sine) / mass
    inertia = HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass)
    angular_acceleration = (GRAVITY * sine - cosine * common) / inertia
    acceleration = common - POLE * HALF_LENGTH * angular_acceleration * cosine / mass
    changes = [speed, acceleration, angular_speed, angular_acceleration]
    return carts + SECONDS * torch.stack(changes, dim=1)


def find_standing(carts: Tensor) -> Tensor:
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
            # Each rank's carts are its own from here on.
            torch.manual_seed(session.config["seed"] + session.rank)
        while True:
            total = 0.0
            for _ in range(self.updates):
                seen, pushes, lasted = self.run_episodes(policy, session.device)
                loss = self.compute_loss(trained(seen), pushes, lasted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                session.record(batch_size=len(seen), loss=loss, lasted=lasted.mean())
                total += float(lasted.mean())
                if session.stop_requested:
                    return
            yield {"train/lasted": total / self.updates}

    def compute_loss(self, logits: Tensor, pushes: Tensor, lasted: Tensor) -> Tensor:
        """Return the loss of REINFORCE.

        Args:
            logits: Output of the policy for each observation, (m, 2).
            pushes: The push that was chosen there, (m,).
            lasted: Steps that each cart lasted, (n,).
        """
        mean_of_others = (lasted.sum() - lasted) / (self.carts - 1)
        gains = (lasted - mean_of_others) / LONGEST
        # The carts that still stood at each push, in the order in which they were seen.
        weights = torch.cat([gains[lasted > moment] for moment in range(int(lasted.max()))])
        chosen = logits.log_softmax(1).gather(1, pushes[:, None])[:, 0]
        return -(chosen * weights).sum() / self.carts

    @torch.no_grad()
    def run_episodes(
        self, policy: nn.Module, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let every cart go until its pole falls; return the observations (m, 4), the pushes (m,),
        and the steps that each cart lasted (n,)."""
        carts = torch.rand(self.carts, 4, device=device) * 0.1 - 0.05
        lasted = torch.zeros(self.carts, device=device)
        numbers = torch.arange(self.carts, device=device)
        seen = []
        pushes = []
        for _ in range(LONGEST):
            right = torch.distributions.Categorical(logits=policy(carts)).sample()
            seen.append(carts)
            pushes.append(right)
            lasted[numbers] += 1

            carts = push(carts, right)
            is_standing = find_standing(carts)
            numbers = numbers[is_standing]
            carts = carts[is_standing]
            if not len(carts):
                break
        return torch.cat(seen), torch.cat(pushes), lasted
