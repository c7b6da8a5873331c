"""Images, figures and tables of real runs: their files and index, after a resume too, and what happens
if they cannot be written."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

from hooks import Hook, Interval, State, Steps, at_interval
from hooks.matrix import read_matrix
from hooks.media import MediaEntry
from orchestrator import RunError, resume, run, sweep
from orchestrator.disk.media import INDEX, MAX_WAITING, MediaWriter, read_media
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.runs.result import Run
from orchestrator.storage import Storage
from tests.tasks import Points, described, experiment

HERE = __name__


@dataclass
class Pictured(Points):
    """Records its inputs as an image and its outputs as a table, once in each validation."""

    def forward(self, model: Any, batch: Any) -> Any:
        output = super().forward(model, batch)
        if self.progress.phase == "val" and self.progress.phase_iteration == 0:
            self.progress.record_image("points", batch[0].sigmoid())
            frame = pd.DataFrame(output.detach().numpy(), columns=["a", "b", "c"])
            self.progress.record_table("worst/outputs", frame)
        return output

    def meters(self) -> Any:
        return {"classes": MulticlassConfusionMatrix(3)}


@dataclass
class Weights(Hook):
    """Records the weights of the first layer as an image, and may break at a step."""

    breaks_at: ClassVar[int] = 0
    every: Steps = Interval(2, "steps")

    @at_interval("every")
    def on_step(self, state: State) -> None:
        state.record_image("weights", next(state.module.parameters()).sigmoid())

    def on_gradients(self, state: State) -> None:
        if state.step == self.breaks_at > 0:
            raise ArithmeticError("broken on purpose")


@dataclass
class Gradients(Hook):
    """Changes training, so that trials share it, and records what it sees."""

    def on_gradients(self, state: State) -> None:
        if state.step % 4 == 0:
            state.record_image("gradient", state.gradients()[0].sigmoid())


def pictured(**fields: Any) -> Any:
    return described(task=f"{HERE}:Pictured", task_args={"train": 32, "val": 20}, **fields)


def index(done: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(done.path) / INDEX).read_text().splitlines()]


def test_files_and_index_of_a_run(tmp_path: Path) -> None:
    hooks = {"weights": {"type": f"{HERE}:Weights"}}
    done = run(pictured(hooks=hooks), tmp_path, local=True)
    keys = ("name", "kind", "phase", "epoch", "step")
    expected = []
    for epoch in range(2):
        steps = range(4 * epoch + 2, 4 * epoch + 5, 2)
        expected += [("train/weights", "image", "train", epoch, step) for step in steps]
        names = {"points": "image", "worst/outputs": "table", "classes": "matrix"}
        for name, kind in names.items():
            expected.append((f"val/{name}", kind, "val", epoch, 4 * epoch + 4))
    lines = index(done)
    assert [tuple(line[key] for key in keys) for line in lines] == expected
    files = {line["file"] for line in lines}
    folder = Path(done.path)
    found = {str(path.relative_to(folder)) for path in (folder / "media").rglob("*.*")}
    assert found == files
    assert "media/val/worst/outputs/step-00000004.csv" in files

    weights = done.weights("last")["0.weight"]
    image = np.asarray(Image.open(folder / "media/train/weights/step-00000008.png"))
    np.testing.assert_array_equal(image, (weights.sigmoid() * 255).round().byte().numpy())
    assert (lines[0]["width"], lines[0]["height"]) == (5, 8)


def test_confusion_matrix_is_that_of_torchmetrics(tmp_path: Path) -> None:
    done = run(pictured(), tmp_path, local=True)
    task = Pictured(train=32, val=20)
    model = task.model()
    model.load_state_dict(done.weights("last"))
    meter = MulticlassConfusionMatrix(3)
    for point, label, _ in task.data()["val"]:
        meter.update(model(point[None]), label[None])
    found = read_matrix((Path(done.path) / "media/val/classes/step-00000008.csv").read_bytes())
    np.testing.assert_array_equal(found.to_numpy(), meter.compute().numpy())
    assert found.index.name == "target / prediction"
    assert "val/classes" not in done.reports()[-1]


@dataclass
class Collected(Pictured):
    def meters(self) -> Any:
        several = {"confusion": MulticlassConfusionMatrix(3), "f1": MulticlassF1Score(3)}
        return {"all": MetricCollection(several)}


def test_other_weights_and_collections_have_pictures_of_their_own(tmp_path: Path) -> None:
    done = run(
        described(
            task=f"{HERE}:Collected",
            task_args={"train": 32, "val": 20},
            epochs=1,
            hooks={"ema": {"evaluate": "both"}},
        ),
        tmp_path,
        local=True,
    )
    names = {line["name"] for line in index(done)}
    assert {"val/all/confusion", "val/ema/all/confusion"} <= names
    assert {"val/all/f1", "val/ema/all/f1"} <= done.reports()[-1].keys()


@pytest.mark.parametrize(
    "checkpoints", [{}, {"checkpoint": {"every": "3 steps"}}, {"checkpoint": None}]
)
def test_resume_replaces_what_followed_its_checkpoint(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that nothing befell has it, with checkpoints of epochs, of steps, or none."""
    hooks = {"weights": {"type": f"{HERE}:Weights"}, **checkpoints}
    monkeypatch.setattr(Weights, "breaks_at", 7)
    with pytest.raises(RunError, match="broken on purpose"):
        run(pictured(hooks=hooks), tmp_path, "broken", local=True)
    broken = tmp_path / "broken"
    assert "train/weights/step-00000006" in (broken / INDEX).read_text(), "it was flushed"
    (broken / INDEX).write_text((broken / INDEX).read_text() + '{"name": "cut sho')
    monkeypatch.setattr(Weights, "breaks_at", 0)
    resumed = resume(broken)
    whole = run(pictured(hooks=hooks), tmp_path, "whole", local=True)
    assert index(resumed) == index(whole)
    for line in index(whole):
        assert (broken / line["file"]).read_bytes() == (
            tmp_path / "whole" / line["file"]
        ).read_bytes()
    assert len(list((broken / "media").rglob("*.*"))) == len(index(whole))


def test_run_that_continues_another_one_resumes_without_what_it_had_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed before its first checkpoint. That of the first run, from which it resumes, counts the
    first run's images."""
    hooks = {"weights": {"type": f"{HERE}:Weights"}}
    first = run(pictured(hooks=hooks, epochs=2), tmp_path, "first", local=True)
    longer = first.continue_from("last", ["epochs=3"])
    monkeypatch.setattr(Weights, "breaks_at", 11)
    with pytest.raises(RunError, match="broken on purpose"):
        run(longer, tmp_path, "broken", local=True)
    assert "train/weights/step-00000010" in (tmp_path / "broken" / INDEX).read_text()

    monkeypatch.setattr(Weights, "breaks_at", 0)
    resumed = resume(tmp_path / "broken")
    whole = run(longer, tmp_path, "whole", local=True)
    assert index(resumed) == index(whole)
    assert "step-00000010" in str(index(whole))


def entry(name: str, kind: Any = "image", step: int = 1) -> MediaEntry:
    return MediaEntry(name, kind, "train", 0, step, step, step)


def test_name_has_one_kind_also_after_a_resume(tmp_path: Path) -> None:
    state = State(media=MediaWriter(Storage(tmp_path)))
    state.record_table("samples", pd.DataFrame({"a": [1]}))
    with pytest.raises(ValueError, match="'samples' is the name of a recorded table; give this"):
        state.record_image("samples", torch.zeros(2, 2))
    state.media.close()
    state.media = MediaWriter(Storage(tmp_path), kept=1)
    with pytest.raises(ValueError, match="'samples' is the name of a recorded table"):
        state.record_image("samples", torch.zeros(2, 2))


def test_last_of_a_step_counts(tmp_path: Path) -> None:
    state = State(media=MediaWriter(Storage(tmp_path)))
    for value in (0.0, 1.0):
        state.record_image("gray", torch.full((2, 2), value))
    state.media.close()
    (found,) = read_media(Storage(tmp_path))
    assert np.asarray(Image.open(tmp_path / found.file)).min() == 255


def test_failing_write_is_told_once_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "media"
    folder.write_text("a file in the place of the folder")
    state = State(media=MediaWriter(Storage(tmp_path)))
    for step in range(3):
        state.step = step
        state.record_image("gray", torch.zeros(2, 2))
    state.media.flush()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "The image gray is not written"
    ]
    folder.unlink()
    state.record_image("gray", torch.zeros(2, 2))
    state.media.close()
    assert [found.step for found in read_media(Storage(tmp_path))] == [2]
    assert state.media.count == 1


def test_iteration_never_waits_for_a_slow_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()

    def wait() -> bytes:
        assert goes_on.wait(60)
        return b"a\n1\n"

    writer = MediaWriter(Storage(tmp_path))
    for step in range(MAX_WAITING + 9):
        writer.put(entry("slow", "table", step), wait)
    assert [record.message for record in caplog.records] == [
        "The table slow is not written: 64 files are waiting already; record fewer of them"
    ]
    goes_on.set()
    writer.close()
    # One more may have been taken from the queue already.
    assert writer.count in (MAX_WAITING, MAX_WAITING + 1)


def test_follower_gets_each_file_and_chosen_ones_of_earlier_attempts(tmp_path: Path) -> None:
    seen: list[tuple[str, int, bytes]] = []

    def follow(writer: MediaWriter, **options: Any) -> None:
        writer.follow(lambda found, data: seen.append((found.name, found.step, data)), **options)

    writer = MediaWriter(Storage(tmp_path))
    follow(writer)
    for step in range(4):
        writer.put(entry("table", "table", step), lambda step=step: b"%d" % step)
    writer.close()
    assert seen == [("table", step, b"%d" % step) for step in range(4)]
    seen.clear()
    follow(MediaWriter(Storage(tmp_path), kept=3), is_wanted=lambda found: found.step >= 1)
    assert seen == [("table", 1, b"1"), ("table", 2, b"2")]


def test_loop_without_a_run_passes_files_on() -> None:
    seen: list[str] = []
    media = MediaWriter()
    media.follow(lambda found, data: seen.append(found.name))
    task = Pictured(train=16, val=8)
    list(Loop(task, experiment(epochs=1), {}, RunContext(media=media)).run())
    assert seen == ["val/points", "val/worst/outputs", "val/classes"]


def test_trials_that_share_a_training_keep_their_own_validations(tmp_path: Path) -> None:
    """What is recorded in the shared training is with the first of them, as its rows are."""
    space = {"hooks.ema.decay": {"grid": [0.5, 0.9]}}
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    hooks = {"gradients": {"type": f"{HERE}:Gradients"}, "ema": {"evaluate": "both"}}
    done = sweep(pictured(hooks=hooks, sweep=settings), tmp_path, local=True)
    first, second = ({line["name"] for line in index(trial)} for trial in done.runs)
    assert {"val/classes", "val/ema/classes", "val/points"} <= first & second
    assert first - second == {"train/gradient"}
    matrices = []
    for trial in done.runs:
        file = Path(trial.path) / "media/val/ema/classes/step-00000008.csv"
        matrices.append(read_matrix(file.read_bytes()).to_numpy())
        assert np.trace(matrices[-1]) / 20 == pytest.approx(trial.reports()[-1]["val/ema/accuracy"])


def test_evaluation_has_images_of_its_own(tmp_path: Path) -> None:
    done = run(pictured(), tmp_path, local=True)
    before = index(done)
    for _ in range(2):
        evaluated = done.evaluate("last", local=True)
        assert [line["name"] for line in index(evaluated)] == [
            "val/points",
            "val/worst/outputs",
            "val/classes",
        ]
    assert index(done) == before
