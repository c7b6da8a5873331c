from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.mnist_clustering import MnistSwAV
from experiments.mnist_ssl import labelled
from hooks.self_supervised.deepcluster import DeepCluster
from hooks.self_supervised.swav import SwAV
from hooks.self_supervised.swav_momentum import SwAVMomentum
from hooks.training.freeze_parameters import FreezeParameters
from orchestrator import load_experiment
from orchestrator.config.resolve import resolve
from orchestrator.loop.loop import Loop

FOLDER = Path(__file__).parents[2] / "experiments"
MOMENTUM = ["task_args.momentum_encoder=true", "hooks.swav=null", "hooks.swav_momentum={queue_length: 32}"]


def test_scores_are_the_similarities_of_unit_length_embeddings_to_the_prototypes() -> None:
    torch.manual_seed(0)
    task = MnistSwAV(width=2, embedding=5, prototypes=7)
    model: Any = task.model()
    views = [view(torch.rand(6, 1, 28, 28)) for view in task.views()]
    assert [tuple(view.shape) for view in views] == [(6, 1, 28, 28)] * 2 + [(6, 1, 16, 16)] * 2
    embeddings, scores = task.forward(model, (views, torch.arange(6)))
    for embedding, score in zip(embeddings, scores, strict=True):
        torch.testing.assert_close(embedding.norm(dim=1), torch.ones(6))
        torch.testing.assert_close(score, embedding @ model.prototypes.weight.t())


@pytest.mark.parametrize(
    ("file", "overrides", "name", "hook"),
    [
        ("mnist_swav", [], "swav", SwAV),
        ("mnist_swav", MOMENTUM, "swav_momentum", SwAVMomentum),
        ("mnist_deepcluster", ["hooks.deepcluster.clusters=[8, 5]"], "deepcluster", DeepCluster),
    ],
    ids=["swav", "swav_momentum", "deepcluster"],
)
def test_the_files_train_a_few_steps_and_are_probed(
    file: str, overrides: list[str], name: str, hook: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        phase: torch.utils.data.TensorDataset(*dataset[:size])
        for (phase, dataset), size in zip(labelled().items(), (96, 40), strict=True)
    }

    def few() -> dict[str, Any]:
        return small

    monkeypatch.setattr("experiments.mnist_ssl.labelled", few)
    small_run = ["task_args.width=2", "epochs=2", "batch_size=32", "hooks.checkpoint=false", "hooks.console=false"]
    experiment = load_experiment(FOLDER / f"{file}.yaml", [*small_run, *overrides])
    task = resolve(experiment.source).task
    hooks = resolve(experiment.source).hooks
    assert isinstance(hooks[name], hook)
    reports = [report.metrics for report in Loop(task, experiment, hooks).run()]
    assert reports[1]["step"] == 6
    assert reports[1]["train/loss"] < reports[0]["train/loss"] + 1
    assert 0 <= reports[1]["val/knn_accuracy"] <= 1


def test_swav_keeps_its_prototypes_for_an_epoch() -> None:
    experiment = load_experiment(FOLDER / "mnist_swav.yaml", [])
    freeze = resolve(experiment.source).hooks["freeze_prototypes"]
    assert isinstance(freeze, FreezeParameters)
    assert (freeze.patterns, str(freeze.until)) == (["prototypes.weight"], "1 epoch")
