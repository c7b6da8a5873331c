from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.mnist_gan import MnistGan
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.optim.building import build_optimizers
from orchestrator.experiment.optimizations import list_optimizations

ROOT = Path(__file__).resolve().parents[2]


def test_its_turns_are_those_of_the_paper() -> None:
    """With D = sigmoid(x), -log D is log(1 + e^-x): the discriminator's loss, and the
    non-saturating generator's."""
    task = MnistGan(width=2, noise=3)
    torch.manual_seed(0)
    model: Any = task.model()
    batch = [torch.rand(4, 1, 28, 28), torch.zeros(4)]
    torch.manual_seed(1)
    (d, of_d), (g, of_g) = task.turns(model, batch)
    torch.manual_seed(1)
    images = model.generator(torch.randn(4, 3))
    real, fake = (torch.sigmoid(model.discriminator(one)) for one in (batch[0], images))
    assert (d, g, images.shape) == ("d", "g", (4, 1, 28, 28))
    expected = [-real.log().mean(), -(1 - fake).log().mean(), -fake.log().mean()]
    assert [value.item() for value in (*of_d.values(), of_g)] == pytest.approx(
        [value.item() for value in expected], rel=1e-5
    )  # type: ignore[union-attr]


def test_its_file_gives_each_optimizer_its_network() -> None:
    experiment = load_experiment(ROOT / "experiments" / "mnist_gan.yaml")
    model: Any = MnistGan(width=2).model()
    optimizers = build_optimizers(list_optimizations(experiment), MnistGan(width=2), model)
    trained = {
        name: [p for group in one.param_groups for p in group["params"]]
        for name, one in optimizers.items()
    }
    assert [list(map(id, trained[name])) for name in "dg"] == [
        list(map(id, part.parameters())) for part in (model.discriminator, model.generator)
    ]
