"""The tasks of the guides on tasks and data compute what the guides say of them."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import random_split

from orchestrator import Run, load_experiment, run
from orchestrator.loop.data.iterable_shard import IterableShard
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT

GUIDES = ROOT / "docs" / "guides"


def train(task: str, folder: Path, *overrides: str) -> Run:
    experiment = load_experiment("study/diabetes.yaml", [f"task=study.{task}", *overrides])
    return run(experiment, folder / task.partition(":")[0], local=True)


def test_meter_is_the_r2_of_its_definition(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)

    done = train("scored:Scored", folder)

    last = done.metrics.iloc[-1]
    torch.manual_seed(0)
    val = importlib.import_module("study.scored").Scored().data()["val"]
    variance = torch.stack([target for _, target in val]).var(correction=0).item()
    assert last["val/r2"] == pytest.approx(1 - last["val/loss"] / variance, rel=1e-4)
    assert "train/r2" not in done.metrics


def test_mappings_train_like_pairs(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)

    pairs = train("scored:Scored", folder, "epochs=2").metrics
    mappings = train("patients:Patients", folder, "epochs=2").metrics

    metrics = ["train/loss", "val/loss", "val/absolute_error", "val/r2"]
    assert mappings[metrics].to_numpy() == pytest.approx(pairs[metrics].to_numpy())


def test_reported_column_is_the_mean_of_its_rows(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)

    done = train("bias:Bias", folder, "epochs=2", "hooks.row_stats={report: [bias/mean]}")

    means = done.stats.query("phase == 'train'").groupby("epoch")["bias"].mean()
    assert done.metrics["stats/bias/mean"].tolist() == pytest.approx(means.tolist())


def test_frozen_network_keeps_its_weights(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)

    done = train("perceptual:Perceptual", folder, "epochs=2")

    torch.manual_seed(0)
    task = importlib.import_module("study.perceptual").Perceptual()
    task.data()
    initial: Any = task.model()
    weights = done.weights("last")
    assert torch.equal(weights["frozen.0.weight"], initial["frozen"][0].weight)
    assert not torch.equal(weights["trained.0.weight"], initial["trained"][0].weight)


def test_slices_train_like_collated_samples(folder: Path) -> None:
    write_files(GUIDES / "data.md", folder)

    collated = train("diabetes:Diabetes", folder, "epochs=3")
    sliced = train("sliced:Sliced", folder, "epochs=3")

    assert sliced.stats["loss"].tolist() == pytest.approx(collated.stats["loss"].tolist())


def test_weights_sample_rare_cases_as_often_as_others(folder: Path) -> None:
    write_files(GUIDES / "data.md", folder)

    metrics = train("balanced:Balanced", folder, "epochs=5").metrics

    assert metrics["train/severe"].mean() == pytest.approx(0.5, abs=0.05)


def test_curriculum_begins_with_the_most_usual_quarter(folder: Path) -> None:
    write_files(GUIDES / "data.md", folder)

    samples = train("curriculum:Curriculum", folder, "epochs=2").samples(where="epoch = 0")

    torch.manual_seed(0)
    targets = importlib.import_module("study.diabetes").Diabetes().data()["train"]
    values = torch.stack([target for _, target in targets])
    order = (values - values.median()).abs().argsort().tolist()
    train_samples = samples[samples["phase"] == "train"]
    assert set(train_samples["index"]) <= set(order[: len(order) // 4])


def test_split_is_that_of_the_seed(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)

    samples = train("diabetes:Diabetes", folder, "epochs=1", "seed=3")

    torch.manual_seed(3)
    expected = random_split(range(442), [342, 100])[1].indices  # type: ignore[arg-type]
    torch.manual_seed(3)
    val = importlib.import_module("study.diabetes").Diabetes().data()["val"]
    assert val.indices == expected
    assert samples.status == "finished"


def test_shuffle_buffer_has_one_order_for_all_ranks_and_another_in_each_pass(folder: Path) -> None:
    write_files(GUIDES / "task.md", folder)
    write_files(GUIDES / "iterable_data.md", folder)
    module = importlib.import_module("study.shuffled")

    def read(rank: int, ranks: int, number: int) -> list[float]:
        shard = IterableShard(module.Shuffled("train"), rank, ranks, seed=3)
        shard.set_epoch(number)
        shard.passes = number
        return [target.item() for _, target in shard]

    in_order = [target.item() for _, target in module.Patients("train")]
    first, second = read(0, 1, 0), read(0, 1, 1)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(in_order)
    assert [read(rank, 2, 1) for rank in range(2)] == [second[::2], second[1::2]]
