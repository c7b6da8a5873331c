"""Lines of predictions against the model's own outputs, sample by sample."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, SubsetRandomSampler

from hooks import Hook, State
from hooks.logs.output_csv import OutputCSV
from hooks.training.ema import EMA
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.orchestrator.loop.test_loop_skipped_steps import Skips
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, experiment


def lines(file: Path) -> list[list[str]]:
    with file.open(newline="") as opened:
        return list(csv.reader(opened))


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.csv"))


def one_phase(hook: OutputCSV, folder: Path, batches: list[tuple[Any, Tensor]]) -> list[list[str]]:
    """A validation of given batches and outputs."""
    state = State(artifacts=folder, phase="val", phase_length=len(batches))
    hook.on_phase_start(state)
    for state.batch, state.output in batches:
        hook.on_loss(state)
        state.phase_iteration += 1
    hook.on_phase_end(state)
    return lines(folder / "output_csv" / "val" / "step-00000000.csv")


OUTPUT = torch.tensor([[0.5, 2.0, -1.0], [3.0, 0.0, 0.25], [0.0, 0.0, 1.5]])


@pytest.mark.parametrize(
    "target",
    [
        torch.tensor([1, 0, 0]),
        torch.tensor([[1], [0], [0]]),
        torch.tensor([[0, 1, 0], [1, 0, 0], [1, 0, 0]]),
        torch.tensor([[0.2, 0.7, 0.1], [0.8, 0.1, 0.1], [0.4, 0.3, 0.3]]),
        [1, 0, 0],
    ],
)
def test_targets_may_be_classes_one_hot_or_soft(target: Any, tmp_path: Path) -> None:
    """ClassyVision writes a list where targets are one-hot."""
    found = one_phase(OutputCSV(), tmp_path, [((None, target), OUTPUT)])
    assert found == [
        ["id", "predicted", "target"],
        ["0", "1", "1"],
        ["1", "0", "0"],
        ["2", "2", "0"],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ids_and_targets_by_key_with_scores(dtype: torch.dtype, tmp_path: Path) -> None:
    batch = {"name": ["a,b", "c", "d"], "label": torch.tensor([2, 1, 0])}
    found = one_phase(
        OutputCSV(id_key="name", target_key="label", scores=True),
        tmp_path,
        [(batch, OUTPUT.to(dtype))] * 2,
    )
    once = [
        ["a,b", "1", "2", "0.5", "2.0", "-1.0"],
        ["c", "0", "1", "3.0", "0.0", "0.25"],
        ["d", "2", "0", "0.0", "0.0", "1.5"],
    ]
    assert found == [["id", "predicted", "target", "score_0", "score_1", "score_2"], *once, *once]


@pytest.mark.parametrize(
    ("hook", "batch", "output", "said"),
    [
        (
            OutputCSV(),
            (None, torch.zeros(3)),
            torch.zeros(3),
            r"with at least two classes, got \(3,\)",
        ),
        (OutputCSV(), (None, torch.zeros(3)), torch.zeros(3, 1), r"two classes, got \(3, 1\)"),
        (OutputCSV(), (None, torch.zeros(3)), {"logits": OUTPUT}, "two classes, got dict"),
        (OutputCSV(), (None,), OUTPUT, "target_key: a batch has no entry 1, but the length 1"),
        (
            OutputCSV(id_key="name"),
            {"id": [1], "label": [2]},
            OUTPUT,
            "id_key: a batch has no entry 'name', but the keys 'id', 'label'",
        ),
        (
            OutputCSV(),
            (None, torch.zeros(3, 2, 2)),
            OUTPUT,
            r"shape \(3,\) or \(3, classes\), got \(3, 2, 2\)",
        ),
        (OutputCSV(), (None, torch.zeros(2)), OUTPUT, r"got \(2,\)"),
    ],
)
def test_mismatched_output_is_an_error(
    hook: OutputCSV, batch: Any, output: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        one_phase(hook, tmp_path, [(batch, output)])


# In a run

TASK = Points(train=20, val=11, test=7)


class Outputs(Hook):
    """What the model put out for each sample, by phase and place in the dataset: what the files
    must say."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, int]] = {}

    def on_phase_start(self, state: State) -> None:
        self.seen[state.phase] = {}

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            self.seen[state.phase].update(
                zip(state.batch[2].tolist(), state.output.argmax(1).tolist(), strict=True)
            )


@dataclass
class Shuffled(Points):
    """Points that a sampler of the task puts into another order."""

    def sampler(self, dataset: Any, phase: str) -> Any:
        return SubsetRandomSampler(range(len(dataset)))


def expected(seen: dict[int, int], size: int, seed: int) -> list[list[str]]:
    labels = PointSet(size, False, seed).labels.tolist()
    return [
        ["id", "predicted", "target"],
        *([str(i), str(seen[i]), str(labels[i])] for i in range(size)),
    ]


@pytest.mark.parametrize("id_key", [None, 2])
@pytest.mark.parametrize("task", [TASK, Shuffled(train=20, val=11, test=7)])
def test_each_sample_of_val_and_test_has_its_line(
    task: Points, id_key: Any, tmp_path: Path
) -> None:
    outputs = Outputs()
    hooks: dict[str, Hook] = {"csv": OutputCSV(id_key=id_key), "outputs": outputs}
    list(
        Loop(task, experiment(epochs=2, batch_size=4), hooks, RunContext(artifacts=tmp_path)).run()
    )
    assert files(tmp_path) == [
        "csv/test/step-00000010.csv",
        "csv/val/step-00000005.csv",
        "csv/val/step-00000010.csv",
    ]
    assert lines(tmp_path / "csv/val/step-00000010.csv") == expected(outputs.seen["val"], 11, 1)
    assert lines(tmp_path / "csv/test/step-00000010.csv") == expected(outputs.seen["test"], 7, 2)


class InOrder(IterableDataset[Any]):
    """Points in their order, without an index."""

    def __init__(self, points: PointSet) -> None:
        self.points = points

    def __iter__(self) -> Iterator[Any]:
        return (self.points[place] for place in range(len(self.points)))


@dataclass
class InOrderPoints(Points):
    def data(self) -> Any:
        data = super().data()
        return {"train": data["train"], "val": InOrder(data["val"])}


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_samples_of_an_iterable_dataset_have_their_positions(
    processes: int, tmp_path: Path
) -> None:
    """Of two loader processes, one reads the even samples, and the other the odd ones."""
    outputs = Outputs()
    hooks: dict[str, Hook] = {"csv": OutputCSV(), "outputs": outputs}
    settings = experiment(epochs=1, batch_size=4, loader={"num_workers": processes})
    task = InOrderPoints(train=4, val=21)
    list(Loop(task, settings, hooks, RunContext(artifacts=tmp_path)).run())
    found = lines(tmp_path / "csv/val/step-00000001.csv")
    assert found == expected(outputs.seen["val"], 21, 1)


def test_validations_at_the_same_step_have_a_file_each(tmp_path: Path) -> None:
    """The updates of the second epoch are skipped."""
    hooks: dict[str, Hook] = {"csv": OutputCSV(), "skips": Skips(after=5)}
    list(
        Loop(TASK, experiment(epochs=2, batch_size=4), hooks, RunContext(artifacts=tmp_path)).run()
    )
    assert [file for file in files(tmp_path) if "val" in file] == [
        "csv/val/step-00000005-iteration-00000010.csv",
        "csv/val/step-00000005.csv",
    ]


def test_each_set_of_weights_has_a_file(tmp_path: Path) -> None:
    outputs = Outputs()
    hooks: dict[str, Hook] = {
        "csv": OutputCSV(),
        "ema": EMA(decay=0.99, evaluate="both"),
        "outputs": outputs,
    }
    loop = Loop(TASK, experiment(epochs=1), hooks, RunContext(artifacts=tmp_path))
    list(loop.run())
    assert files(tmp_path) == [
        "csv/test/ema/step-00000003.csv",
        "csv/test/step-00000003.csv",
        "csv/val/ema/step-00000003.csv",
        "csv/val/step-00000003.csv",
    ]
    points = PointSet(11, False, 1).points
    loop.state.module.eval()
    for folder, weights in (
        ("val", loop.state.evaluations[""]),
        ("val/ema", loop.state.evaluations["ema"]),
    ):
        with weights(loop.state), torch.no_grad():
            predicted = loop.state.module(points).argmax(1).tolist()
        assert [line[1] for line in lines(tmp_path / "csv" / folder / "step-00000003.csv")[1:]] == [
            str(p) for p in predicted
        ]


def _on_a_rank(rank: int, world_size: int, folder: str) -> Any:
    """With a disk of its own, and one sample of val, so that a rank has none; 7 of test, which do
    not divide evenly."""
    outputs = Outputs()
    artifacts = Path(folder) / str(rank)
    task = Shuffled(train=20, val=1, test=7)
    hooks: dict[str, Hook] = {
        "by place": OutputCSV(),
        "by id": OutputCSV(id_key=2),
        "outputs": outputs,
    }
    context = RunContext(artifacts=artifacts, world=World(rank=rank, world_size=world_size))
    list(Loop(task, experiment(epochs=1, batch_size=2), hooks, context).run())
    return outputs.seen


def test_the_samples_of_all_ranks_are_in_one_file_in_the_order_of_the_dataset(
    tmp_path: Path,
) -> None:
    first, second = on_ranks(_on_a_rank, 2, str(tmp_path))
    folders = ("by id", "by place")
    phases = product(folders, ("test", "val"))
    assert files(tmp_path) == [f"0/{name}/{phase}/step-00000005.csv" for name, phase in phases]
    for phase, size, seed in (("val", 1, 1), ("test", 7, 2)):
        seen = {**first[phase], **second[phase]}
        for name in folders:
            assert lines(tmp_path / "0" / name / phase / "step-00000005.csv") == expected(
                seen, size, seed
            )
