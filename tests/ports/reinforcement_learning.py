"""pytorch/examples reinforcement_learning: REINFORCE on a cart with a pole, in a loop of its own, until it is solved.

The original has no validation; here the policy's best action is followed for an episode before each report.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributions import Categorical

from orchestrator import Task, TrainingSession
from tests.ports.harness import SEED, FailsBetweenRows, Port, Ranks, Trained, seed_all

GAMMA, LONGEST, LOG_INTERVAL, SOLVED = 0.99, 40, 5, 15.2


class CartPole:
    """A cart at a place, at a speed, with a pole at an angle, which turns at a rate."""

    def reset(self) -> list[float]:
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action: int) -> tuple[list[float], float, bool]:
        place, speed, angle, rate = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * rate**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        move = push - 0.05 * turn * cosine / 1.1
        self.state = [place + 0.02 * speed, speed + 0.02 * move, angle + 0.02 * rate, rate + 0.02 * turn]
        return self.state, 1.0, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095


def policy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.6), nn.ReLU(), nn.Linear(16, 2), nn.Softmax(-1))


def finish_episode(rewards: list[float], log_probabilities: list[Tensor], optimizer: optim.Optimizer) -> Tensor:
    returns: list[float] = []
    for reward in rewards[::-1]:
        returns.insert(0, reward + GAMMA * (returns[0] if returns else 0.0))
    scaled = torch.tensor(returns)
    scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
    loss = -(torch.stack(log_probabilities) * scaled).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def run_episode(env: CartPole, model: nn.Module) -> tuple[list[float], list[Tensor]]:
    state, rewards, log_probabilities = env.reset(), [], []
    for _ in range(LONGEST):
        distribution = Categorical(model(torch.tensor(state)))
        action = distribution.sample()
        log_probabilities.append(distribution.log_prob(action))
        state, reward, is_over = env.step(int(action))
        rewards.append(reward)
        if is_over:
            break
    return rewards, log_probabilities


@torch.no_grad()
def length_of_best(env: CartPole, model: nn.Module) -> float:
    state, length, is_over = env.reset(), 0, False
    model.eval()
    while not is_over and length < LONGEST:
        state, _, is_over = env.step(int(model(torch.tensor(state)).argmax()))
        length += 1
    model.train()
    return float(length)


def raw(ranks: Ranks) -> Trained:
    seed_all(SEED)
    env, model = CartPole(), policy()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    running_reward = 10.0
    trained = Trained(model.state_dict(), {})
    for episode in count(1):
        rewards, log_probabilities = run_episode(env, model)
        running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
        loss = finish_episode(rewards, log_probabilities, optimizer)
        trained.record(loss=loss.item(), reward=sum(rewards))
        if episode % LOG_INTERVAL == 0 or running_reward > SOLVED:
            trained.reports.append({"train/reward": running_reward, "val/length": length_of_best(env, model)})
        if running_reward > SOLVED:
            break
    trained.optimizer = optimizer.state_dict()
    return trained


@dataclass
class Reinforce(Task):
    def train(self, session: TrainingSession) -> Iterator[Mapping[str, float]]:
        env, model = CartPole(), policy()
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        running = {"reward": 10.0}
        session.restore(model=model, optimizer=optimizer, running=running)
        for episode in count(session.step + 1):
            rewards, log_probabilities = run_episode(env, model)
            running["reward"] = 0.05 * sum(rewards) + 0.95 * running["reward"]
            loss = finish_episode(rewards, log_probabilities, optimizer)
            session.record(loss=loss, reward=sum(rewards), batch_size=len(rewards))
            if episode % LOG_INTERVAL == 0 or running["reward"] > SOLVED:
                yield {"train/reward": running["reward"], "val/length": length_of_best(env, model)}
            if running["reward"] > SOLVED:
                return


EXPERIMENT: dict[str, Any] = {"task": Reinforce, "epochs": 1000}
PORT = Port(EXPERIMENT, raw, places="train 1 2, val 2 0", fails=FailsBetweenRows)
