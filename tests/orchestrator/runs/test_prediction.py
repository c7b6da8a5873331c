"""Predictions are the model's own outputs, each sample once and in the order of the dataset."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassRecall
from typer.testing import CliRunner

from orchestrator import ConfigError, Run, UsageError, open_run, resume, run
from orchestrator.cli import app
from orchestrator.disk import predictions
from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.engines.assignment import Assignment, PredictionTarget
from orchestrator.report import make_report
from orchestrator.runs.prediction import prepare_prediction
from orchestrator.runs.result import Predictions
from tests.orchestrator.runs.several_ranks import create, train
from tests.orchestrator.runs.written import change
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, described


@dataclass
class Metered(Points):
    """Has a meter, which a prediction does not compute."""

    def meters(self) -> dict[str, Any]:
        return {"recall": MulticlassRecall(3)}


@dataclass
class Kept(Points):
    """Keeps something of each sample, as `keeps` says; its sampler leaves samples out."""

    keeps: str = ""
    test: int = 13

    def sampler(self, dataset: Any, phase: str) -> Any:
        return None if phase == "train" else [float(index < 3) for index in range(len(dataset))]

    def predict(self, output: Tensor, batch: Any) -> Any:
        label = output.argmax(1)
        kept = {
            "": output,
            "columns": {"label": label, "name": [f"class {index}" for index in label.tolist()]},
            "lists": [row[: 1 + index % 2] for index, row in enumerate(output)],
            "texts": {"name": np.array([f"class {index}" for index in label.tolist()])},
            "none": {"none": output[:, :0]},
            "complex": {"complex": output.to(torch.complex64)},
            "sparse": {"sparse": output.to_sparse()},
            "grid": {"grid": output.reshape(-1, 3, 1).bfloat16()},
            "short": output[:-1],
            "scalar": output.mean(),
            "growing": output[:, : 1 + int(batch[0][0, 0] == NEW[9, 0])],
            "object": {"object": object()},
            "objects": [object() for _ in output],
            "index": {"index": label},
        }
        return kept[self.keeps]


NEW = torch.randn(11, 5, generator=torch.Generator().manual_seed(7))


def new_data() -> TensorDataset:
    """Points without targets."""
    return TensorDataset(NEW)


class NewStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(NEW.unsqueeze(1))


def described_run(**task_args: Any) -> Any:
    return described(
        task=f"{__name__}:Kept",
        task_args={"batch_norm": True, "dropout": 0.5, **task_args},
        hooks={
            "ema": {"decay": 0.5, "evaluate": "both"},
            "checkpoint": {"best": ["val/ema/loss", "val/loss"], "keep": None},
            "output_csv": {},
        },
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(described_run(), tmp_path_factory.mktemp("runs"), "first", local=True)


def outputs(done: Run, label: str, points: Tensor) -> Tensor:
    """The outputs of plain PyTorch, in batches as those of the run."""
    model = done.load(label)
    with torch.no_grad():
        return torch.cat([model(part) for part in points.split(8)])


def points_of(phase: str) -> Tensor:
    dataset: Any = Points(test=13).data()[phase]
    return dataset.points


def stacked(frame: pd.DataFrame, name: str = "output") -> Tensor:
    return torch.from_numpy(np.stack(frame[name].to_list()))


# One rank


def test_data_comes_from_a_module_in_the_current_folder(
    done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from tests.tasks import PointSet\n\n\ndef make():\n    return PointSet(5, False, 0)\n"
    (tmp_path / "own_points.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert len(done.predict("own_points:make", local=True).load()) == 5


@pytest.mark.parametrize("label", ["best", "best-val-loss", "last"])
@pytest.mark.parametrize("phase", ["val", "test"])
def test_predictions_are_the_outputs_of_the_loaded_model(done: Run, label: str, phase: str) -> None:
    """23 and 13 samples in batches of 8, of the averages and of the raw weights."""
    made = done.predict(label=label, phase=phase)
    frame = made.load()
    expected = outputs(done, label, points_of(phase))
    assert frame.index.tolist() == list(range(len(expected)))
    assert torch.equal(stacked(frame), expected)
    written = pd.read_parquet(made.path)
    assert written["index"].tolist() == frame.index.tolist()


def test_averages_and_raw_weights_differ(done: Run) -> None:
    points = points_of("val")
    assert not torch.equal(outputs(done, "best", points), outputs(done, "best-val-loss", points))


def test_data_may_be_another_dataset_without_targets(done: Run) -> None:
    expected = outputs(done, "best", NEW)
    for data in (TensorDataset(NEW), f"{__name__}:new_data"):
        made = done.predict(data)
        assert torch.equal(stacked(made.load()), expected)
        (report,) = made.run.reports()
        assert not {"val/loss", "val/accuracy"} & report.keys()
        assert made.run.stats["batch_size"].tolist() == [8, 3]
        assert made.run.config["hooks"]["output_csv"] is None
    assert made.run.name == f"predict-{done.best.checkpoint}-{__name__}-new_data".replace(".", "-")


def test_own_data_is_not_loaded_beside_another_dataset(
    done: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outputs(done, "best", NEW)

    def refuse(task: Kept) -> Any:
        raise AssertionError("data() was called")

    monkeypatch.setattr(Kept, "data", refuse)
    assert torch.equal(stacked(done.predict(TensorDataset(NEW)).load()), expected)


def test_few_samples_are_not_taken_for_a_short_training(tmp_path: Path) -> None:
    """An epoch of training has 7 iterations, and the warm-up 5 steps: more than a batch to
    predict."""
    experiment = described(
        task=f"{__name__}:Kept",
        epochs=1,
        scheduler={"type": "LinearLR", "warmup": "5 steps"},
        hooks={"param_scheduler": {"every": "1 steps"}, "model_complexity": {}, "checkpoint": {}},
    )
    trained = run(experiment, tmp_path, "warmed", local=True)
    made = trained.predict(TensorDataset(NEW[:3]), phase="test")
    assert torch.equal(stacked(made.load()), outputs(trained, "best", NEW[:3]))


def test_other_weights_can_be_predicted(done: Run, tmp_path: Path) -> None:
    torch.save(done.weights("epoch-0001"), tmp_path / "first.pt")
    made = done.predict(overrides=[f"init.from={tmp_path / 'first.pt'}"])
    assert torch.equal(stacked(made.load()), outputs(done, "epoch-0001", points_of("val")))


@pytest.mark.parametrize("keeps", ["columns", "texts", "lists", "grid"])
def test_task_says_what_to_keep(done: Run, keeps: str) -> None:
    frame = done.predict(overrides=[f"task_args.keeps={keeps}"]).load()
    expected = outputs(done, "best", points_of("val"))
    if keeps == "columns":
        assert frame["label"].tolist() == expected.argmax(1).tolist()
        assert frame["name"].tolist() == [f"class {label}" for label in expected.argmax(1)]
    elif keeps == "texts":
        assert frame["name"].tolist() == [f"class {label}" for label in expected.argmax(1)]
    elif keeps == "lists":
        kept = [row[: 1 + index % 8 % 2].tolist() for index, row in enumerate(expected)]
        assert [list(row) for row in frame["output"]] == [pytest.approx(row) for row in kept]
    else:
        cells = torch.tensor([[list(row) for row in cell] for cell in frame["grid"]])
        assert torch.equal(cells, expected.reshape(-1, 3, 1).bfloat16().float())


def test_parts_are_written_as_they_fill(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has an index of 8 bytes and three outputs of 4 bytes: two batches fill a part."""
    monkeypatch.setattr(predictions, "_PART_BYTES", 16 * 20)
    made = done.predict()
    names = ["part-000000000000.parquet", "part-000000000016.parquet"]
    assert sorted(path.name for path in Path(made.path).iterdir()) == names
    (Path(made.path) / ".nfs00000001").write_text("of a network file system")
    assert torch.equal(stacked(made.load()), outputs(done, "best", points_of("val")))


# Several ranks


def to_predict(done: Run, name: str, data: Any, ranks: int, provider: str = "ema") -> Assignment:
    prepared = prepare_prediction(done.folder, data, "best", "val", [], ranks)
    target = prepared.target.pickle_data(None)
    assert isinstance(target, PredictionTarget)
    assert target.provider == provider
    created = create(prepared.experiment, Path(done.path) / EVALUATIONS, name)
    return replace(created, target=target)


def test_two_ranks_predict_each_sample_once(done: Run) -> None:
    """23 samples are 12 and 11, so that the last batches differ; of one sample, a rank has none.
    Files of an earlier attempt go."""
    val = to_predict(done, "two", None, 2)
    new = to_predict(done, "two-new", TensorDataset(NEW), 2)
    single = to_predict(done, "two-single", TensorDataset(NEW[:1]), 2)
    old = Path(val.location) / "predictions/part-000000000003.parquet"
    old.parent.mkdir()
    old.touch()
    on_ranks(train, 2, [val, new, single])

    for assignment, points in ((val, points_of("val")), (new, NEW), (single, NEW[:1])):
        made = Predictions(open_run(assignment.location))
        frame = made.load()
        assert frame.index.tolist() == list(range(len(points)))
        torch.testing.assert_close(stacked(frame), outputs(done, "best", points))
        assert pd.read_parquet(made.path)["index"].tolist() == frame.index.tolist()
    names = sorted(path.name for path in old.parent.iterdir())
    assert names == ["part-000000000000.parquet", "part-000000000012.parquet"]


def test_meters_need_no_sample_on_each_rank_of_a_prediction(tmp_path: Path) -> None:
    trained = run(described(task=f"{__name__}:Metered", epochs=1), tmp_path, "first", local=True)
    single = to_predict(trained, "single", TensorDataset(NEW[:1]), 2, provider="")
    on_ranks(train, 2, [single])
    made = Predictions(open_run(single.location)).load()
    torch.testing.assert_close(stacked(made), outputs(trained, "best", NEW[:1]))


def test_sharded_model_predicts_with_unequal_batches(tmp_path: Path) -> None:
    """9 samples in batches of 4 are 5 and 4: two batches and one."""
    experiment = described(
        epochs=1, batch_size=4, workers={"count": 2, "strategy": "fsdp"}, task_args={"val": 9}
    )
    trained = create(experiment, tmp_path, "sharded")
    predicted = replace(
        create(experiment, tmp_path / "sharded" / EVALUATIONS, "two"),
        target=PredictionTarget("epoch-0001", "val"),
    )
    on_ranks(train, 2, [trained, predicted])
    made = Predictions(open_run(predicted.location)).load()
    dataset = PointSet(9, noisy=False, seed=1)
    expected = outputs(open_run(trained.location), "last", dataset.points)
    torch.testing.assert_close(stacked(made), expected)


# What can be wrong


@pytest.mark.parametrize(
    ("keeps", "words"),
    [
        (
            "short",
            r"predict\(\) returns a tensor of shape \(7, 3\) with 7 values for 'output'; expected 8, one for each"
            r" sample of the batch \(.*test_prediction.py",
        ),
        ("scalar", r"a tensor of shape \(\) for 'output'; expected a tensor, an array or a list"),
        ("object", "returns an object for 'object'; expected a tensor, an array or a list"),
        ("none", r"a tensor of shape \(9, 0\) for 'none'"),
        ("complex", r"a tensor of shape \(9, 3\) for 'complex' that is no column"),
        ("sparse", r"a tensor of shape \(9, 3\) for 'sparse' that is no column"),
        ("objects", "returns a list for 'output' that is no column"),
        ("index", "names a column 'index'; expected text other than 'index'"),
        (
            "growing",
            r"'output' \(fixed_size_list<item: float>\[2\]\) for some batches and 'output'"
            r" \(fixed_size_list<item: float>\[1\]\) for others; give all samples one shape",
        ),
    ],
)
def test_wrong_predictions_are_refused(done: Run, keeps: str, words: str) -> None:
    overrides = [f"task_args.keeps={keeps}", "loader.eval_batch_size=9"]
    if keeps == "short":
        overrides[1] = "loader.eval_batch_size=8"
    with pytest.raises(UsageError, match=words):
        done.predict(TensorDataset(NEW), overrides=overrides)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"phase": "train"}, UsageError, "phase must be val, test or a set of these, got 'train'"),
        (
            {"phase": "val/far"},
            UsageError,
            "has no val/far data: when .* was saved, data.. returned only train, val, ",
        ),
        ({"data": "nowhere"}, ConfigError, "data: must be module:function, got 'nowhere'"),
        (
            {"data": f"{__name__}:gone"},
            ConfigError,
            rf"module '{__name__}' \(.*\) has no 'gone'",
        ),
        ({"data": NewStream()}, UsageError, "need a dataset with __len__ and __getitem__"),
        (
            {"data": TensorDataset(NEW[:0])},
            UsageError,
            "the val data is a TensorDataset without a sample to predict",
        ),
    ],
)
def test_missing_or_unordered_data_is_refused(
    done: Run, options: Mapping[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        done.predict(**options)


def test_dataset_that_cannot_be_sent_is_refused(done: Run) -> None:
    """A lock cannot be pickled."""
    dataset: Any = TensorDataset(NEW)
    dataset.lock = threading.Lock()
    prepared = prepare_prediction(done.folder, dataset, "best", "val", [], 2)
    with pytest.raises(UsageError, match=r"the TensorDataset cannot be sent to the ranks \(.*lock"):
        prepared.target.pickle_data(None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["epochs=9"], "has no effect on a prediction, which reads task_args"),
        (["batch_size=4"], "has no effect on a prediction .did you mean 'loader.eval_batch_size'"),
        (["hooks.time_limit.limit=5"], "has no effect on a prediction"),
    ],
)
def test_overrides_without_effect_are_refused(done: Run, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        done.predict(overrides=overrides)


def test_a_prediction_is_named_as_one(done: Run) -> None:
    made = done.predict(f"{__name__}:new_data", phase="test").run
    evaluated = made.folder.read_metadata().evaluates
    assert evaluated is not None
    with pytest.raises(UsageError, match="is a prediction, and has no checkpoints; use its run, "):
        made.predict()
    change(made.folder, status="failed")
    again = rf"hookyard predict {done.path}@{evaluated.checkpoint} --phase test --data {__name__}:new_data"
    with pytest.raises(UsageError, match=f"is a prediction, which cannot be resumed.*{again}"):
        resume(made.path)
    assert f"Prediction of {evaluated}." in make_report(made.folder)
    with pytest.raises(UsageError, match=r"gives train, val, and no test to predict"):
        done.predict(phase="test", overrides=["task_args.test=0"])


def test_missing_task_is_told(done: Run, tmp_path: Path) -> None:
    shutil.copytree(done.path, tmp_path / "moved", ignore=shutil.ignore_patterns(EVALUATIONS))
    source = json.loads((tmp_path / "moved/source.json").read_text())
    source["written"]["task"] = "gone.away:Task"
    (tmp_path / "moved/source.json").write_text(json.dumps(source))
    with pytest.raises(UsageError, match="cannot be used to predict: task: no module 'gone'"):
        open_run(tmp_path / "moved").predict()


# The command


def test_command_names_the_folder(done: Run) -> None:
    arguments = ["predict", f"{done.path}@last", "--data", f"{__name__}:new_data"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("predictions: "))
    folder = line.removeprefix("predictions: ")
    frame = pd.read_parquet(folder)
    assert torch.equal(stacked(frame), outputs(done, "last", NEW))
    label = f"predicts with: {done.path}, checkpoint "
    assert f"on {__name__}:new_data" in result.output.partition(label)[2]


def test_command_refuses_missing_data(done: Run) -> None:
    result = CliRunner().invoke(app, ["predict", str(done.path), "--data", "gone.away:data"])
    assert (result.exit_code, "no module 'gone'" in result.output) == (2, True), result.output
