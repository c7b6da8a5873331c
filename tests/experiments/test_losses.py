import math

import pytest
import torch
from torch.nn import functional

from experiments.losses.deepcluster import DeepClusterLoss
from experiments.losses.distillation import DistillationLoss
from experiments.losses.swav import SwAVLoss
from hooks.self_supervised.deepcluster import UNASSIGNED, ClusteredViews
from hooks.self_supervised.distillation import DistillationOutput
from hooks.self_supervised.shared.swapped_prediction import SwappedViews


def test_the_loss_is_the_cross_entropy_of_every_view_with_its_samples_cluster() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = [
        functional.normalize(torch.randn(3, 4, generator=generator), dim=1) for _ in range(3)
    ]
    centroids = [
        functional.normalize(torch.randn(k, 4, generator=generator), dim=1) for k in (2, 5)
    ]
    assignments = torch.tensor([[0, 1, UNASSIGNED], [4, UNASSIGNED, 2]])
    heads = []
    for table, places in zip(centroids, assignments.tolist(), strict=True):
        terms = []
        for view in embeddings:
            for sample, place in zip(view, places, strict=True):
                if place != UNASSIGNED:
                    exponentials = [torch.exp(sample @ direction / 0.1) for direction in table]
                    terms.append(-torch.log(exponentials[place] / sum(exponentials)))
        heads.append(torch.stack(terms).mean())
    found = DeepClusterLoss(0.1)(ClusteredViews(embeddings, centroids, assignments))
    torch.testing.assert_close(found, torch.stack(heads).mean())


def test_a_batch_without_assignments_has_no_loss() -> None:
    embeddings = [torch.randn(3, 4, requires_grad=True)]
    loss = DeepClusterLoss()(
        ClusteredViews(embeddings, [torch.randn(2, 4)], torch.full((1, 3), UNASSIGNED))
    )
    loss.backward()
    assert loss == 0
    assert embeddings[0].grad is not None
    assert not embeddings[0].grad.any()


STUDENT, TEACHER, LABELS = (
    [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]],
    [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]],
    [0, 2],
)


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize(("temperature", "weight"), [(4.0, 0.9), (1.0, 1.0), (3.0, 0.0)])
def test_it_is_the_papers_formula(temperature: float, weight: float) -> None:
    terms = []
    for student, teacher, label in zip(STUDENT, TEACHER, LABELS, strict=True):
        p, q = softmax(teacher, temperature), softmax(student, temperature)
        divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        terms.append(
            (1 - weight) * -math.log(softmax(student, 1)[label])
            + weight * temperature**2 * divergence
        )
    output = DistillationOutput(torch.tensor(STUDENT), torch.tensor(TEACHER))
    loss = DistillationLoss(temperature, weight)(output, torch.tensor(LABELS))
    assert loss.item() == pytest.approx(sum(terms) / 2, rel=1e-5)


def test_teacher_alone_needs_no_labels() -> None:
    """The cross entropy of labels that are all ignored is NaN, and so is 0 times it."""
    output = DistillationOutput(torch.tensor(STUDENT), torch.tensor(TEACHER))
    loss = DistillationLoss(temperature=1.0, weight=1.0)
    unlabeled = loss(output, torch.tensor([-100, -100]))
    torch.testing.assert_close(unlabeled, loss(output, torch.tensor(LABELS)))


def test_the_loss_is_that_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(5, 3, generator=generator) for _ in range(4)]
    tables = {view: torch.randn(5, 3, generator=generator).softmax(dim=1) for view in (0, 1)}
    terms = []
    for source, q in tables.items():
        for target in range(4):
            if target == source:
                continue
            for sample in range(5):
                exponentials = [torch.exp(scores[target][sample, k] / 0.1) for k in range(3)]
                terms.append(
                    -sum(
                        q[sample, k] * torch.log(exponentials[k] / sum(exponentials))
                        for k in range(3)
                    )
                )
    torch.testing.assert_close(
        SwAVLoss(0.1)(SwappedViews(scores, tables)), torch.stack(terms).mean()
    )
