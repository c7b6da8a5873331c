"""Classifiers of features: by nearest neighbours, and linear on few labels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

PENALTY = 1e-2
"""Weight decay of the linear classifier: half the square of its weights times this."""


def classify_by_neighbours(
    bank: Tensor,
    labels: Tensor,
    features: Tensor,
    classes: int,
    neighbours: int,
    temperature: float,
) -> Tensor:
    """Return the class (n,) of features (n, D) by the weighted vote of the nearest rows of the bank
    (m, D)."""
    bank = functional.normalize(bank, dim=1).t()
    chosen = []
    for part in torch.split(functional.normalize(features, dim=1), 1024):
        similarities, nearest = (part @ bank).topk(min(neighbours, len(labels)), dim=1)
        votes = torch.zeros(len(part), classes, device=part.device)
        votes.scatter_add_(1, labels[nearest], (similarities / temperature).exp())
        chosen.append(votes.argmax(1))
    return torch.cat(chosen) if chosen else labels[:0]


def draw_of_each_class(labels: Tensor, count: int, draw: int) -> Tensor:
    """Return the indices of `count` random samples of each class, the same for the same draw."""
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    return torch.cat([order[labels[order] == label][:count] for label in torch.unique(labels)])


@torch.enable_grad()
def fit_logistic_regression(
    features: Tensor, labels: Tensor, classes: int
) -> Callable[[Tensor], Tensor]:
    """Fit a linear classifier to features (n, D) and labels (n,), and return it: features to
    logits.

    Minimizes the mean cross entropy + PENALTY / 2 * |weights|^2 to convergence in float64. The
    problem is convex, so the result depends only on the data.
    """
    features = features.double()
    weights = features.new_zeros(classes, features.shape[1], requires_grad=True)
    bias = features.new_zeros(classes, requires_grad=True)
    optimizer: torch.optim.Optimizer = torch.optim.LBFGS(
        [weights, bias], max_iter=100, line_search_fn="strong_wolfe"
    )

    def objective() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(functional.linear(features, weights, bias), labels)
        loss = loss + PENALTY / 2 * weights.square().sum()
        torch.autograd.backward(loss)
        return loss.item()

    optimizer.step(objective)
    return lambda features: functional.linear(features.double(), weights.detach(), bias.detach())
