"""Event files, read back with TensorBoard's own reader."""

import io
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util.tensor_util import make_ndarray
from torch import nn

from hooks import Hook, Interval, Priority, State
from hooks.logs.shared.hyperparameters import flatten_config
from hooks.logs.tensorboard import FOLDER, TensorBoard
from hooks.matrix import draw_matrix, encode_matrix
from hooks.training.gradient_clip import GradientClip
from orchestrator.disk.media import MediaWriter
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.hooks.logs.conftest import Start
from tests.hooks.logs.shared.test_hyperparameters import CONFIG
from tests.hooks.model.test_graph import nodes
from tests.hooks.phases import loss_rows, run_phase
from tests.tasks import Points, experiment, numbers


def _events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / FOLDER), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    return events


def _points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(point.step, pytest.approx(point.value)) for point in _events(folder).Scalars(tag)]


def _session(folder: Path, tag: str) -> Any:
    content = _events(folder).summary_metadata[f"_hparams_/{tag}"].plugin_data.content
    return plugin_data_pb2.HParamsPluginData.FromString(content)


def test_points_have_the_mean_loss_since_the_last_and_every_column(
    start: Start, tmp_path: Path
) -> None:
    hook = TensorBoard(every=Interval(2, "iterations"))
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1e-6)
    extra = {
        "grad_norm": torch.tensor(2.0),
        "data_wait_s": 0.5,
        "rss_bytes": 4096,
        "activation/mean": 3.0,
        "epoch": 0,
    }
    rows = [{**row, **extra} for row in loss_rows(1, 2, 3, 5)]
    run_phase(hook, start(hook, optimizer=optimizer), "train", rows)
    hook.on_end(State())
    assert _points(tmp_path, "train/loss") == [(2, 1.5), (4, 4.0)]
    assert _points(tmp_path, "train/lr") == [(2, 1e-6), (4, 1e-6)]
    for tag, value in {
        "train/grad_norm": 2.0,
        "perf/data_wait_s": 0.5,
        "memory/rss_bytes": 4096,
        "activation/mean": 3.0,
    }.items():
        assert _points(tmp_path, tag) == [(2, value), (4, value)]
    tags = _events(tmp_path).Tags()["scalars"]
    assert "train/epoch" not in tags
    # TensorBoard's groups are in the order of ASCII, and it opens the first.
    assert min(tags) == "Loss/train"
    assert _points(tmp_path, "Loss/train") == _points(tmp_path, "train/loss")


@pytest.mark.parametrize(
    ("axis", "losses", "ends"),
    [
        ("step", [(1, 1), (2, 3), (3, 1), (4, 3)], [2, 4]),
        ("iteration", [(2, 1), (4, 3), (6, 1), (8, 3)], [4, 8]),
        ("samples", [(10, 1), (20, 3), (30, 1), (40, 3)], [20, 40]),
        ("epoch", [(1, 2), (2, 2)], [1, 2]),
    ],
)
def test_curves_and_metrics_share_an_axis(
    start: Start, tmp_path: Path, axis: Any, losses: list[Any], ends: list[int]
) -> None:
    """Epochs of four iterations, with a validation in the middle and at the end. MMEngine puts
    every val point of a step-based run at 0, and counts epochs in others."""
    fields = {} if axis == "epoch" else {"every": Interval(2, "iterations")}
    hook = TensorBoard(axis=axis, **fields)
    state = start(hook, accumulate=2)
    for accuracy in (0.5, 0.75):
        state.metrics = {}
        run_phase(hook, state, "train", loss_rows(1, 1), batch_sizes=[5] * 2, length=4)
        run_phase(hook, state, "val", loss_rows(9))
        metrics = {"train/loss": 9.0, "train/accuracy": accuracy}
        run_phase(
            hook, state, "train", loss_rows(3, 3), batch_sizes=[5] * 2, length=4, metrics=metrics
        )
        run_phase(hook, state, "val", loss_rows(9), metrics={"val/accuracy": accuracy})
    hook.on_end(state)
    assert _points(tmp_path, "train/loss") == losses
    assert _points(tmp_path, "train/phase_loss") == [(x, 9.0) for x in ends]
    for tag in ("train/accuracy", "val/accuracy"):
        assert _points(tmp_path, tag) == [(ends[0], 0.5), (ends[1], 0.75)]


def test_validations_within_an_epoch_are_at_its_number(tmp_path: Path) -> None:
    """An epoch has five steps; validations come after steps 3, 6, 9 and 10."""
    hooks: dict[str, Hook] = {"tensorboard": TensorBoard(axis="epoch")}
    _train(tmp_path, hooks, epochs=2, batch_size=12, validate_every="3 steps")
    expected = [1, 2, 2, 2]
    assert [point.step for point in _events(tmp_path).Scalars("val/loss")] == expected


def test_histograms_over_epochs_are_at_the_number_of_their_epoch(tmp_path: Path) -> None:
    hook = TensorBoard(axis="epoch", histograms=Interval(5, "steps"))
    _train(tmp_path, {"tensorboard": hook}, epochs=2, batch_size=12)
    drawn = _events(tmp_path).Histograms("parameters/0.weight")
    assert [event.step for event in drawn] == [1, 2]


def test_hyperparameters_and_their_metrics(start: Start, tmp_path: Path) -> None:
    hook = TensorBoard()
    state = start(hook)
    run_phase(hook, state, "train", loss_rows(1), metrics={"train/loss": 2.0})
    run_phase(hook, state, "val", loss_rows(1), metrics={"val/accuracy": 0.5})
    hook.on_end(state)
    experiment = _session(tmp_path, "experiment").experiment
    assert {info.name for info in experiment.hparam_infos} == set(flatten_config(CONFIG))
    assert {info.name.tag for info in experiment.metric_infos} == {
        "hp/train/loss",
        "hp/val/accuracy",
    }
    assert _points(tmp_path, "hp/val/accuracy") == [(1, 0.5)]
    hparams = _session(tmp_path, "session_start_info").session_start_info.hparams
    assert hparams["hooks.ema.decay"].number_value == 0.99
    assert hparams["scheduler"].string_value == "none"
    assert _session(tmp_path, "session_end_info").session_end_info.status == 1  # success
    assert len(list((tmp_path / FOLDER).iterdir())) == 1, (
        "no sub-run, and no second file that hides the first"
    )


def test_info_of_another_hook_is_drawn_once(start: Start, tmp_path: Path) -> None:
    hook = TensorBoard(every=Interval(1, "iterations"))
    state = start(hook)
    state.info.update(
        parameters=7, metrics={"val/loss": 1.0}, activations={"0/mean": torch.tensor(0.5)}
    )
    run_phase(hook, state, "train", loss_rows(1, 1), length=3)
    state.info["activations"] = {"0/mean": torch.tensor(0.75)}
    run_phase(hook, state, "train", loss_rows(1), length=3)
    hook.on_end(state)
    assert _points(tmp_path, "activations/0/mean") == [(1, 0.5), (3, 0.75)]
    assert not [
        tag
        for tag in _events(tmp_path).Tags()["scalars"]
        if tag.startswith(("metrics", "parameters"))
    ]


def _train(folder: Path, hooks: dict[str, Hook], **fields: Any) -> Loop:
    loop = Loop(
        Points(**fields.pop("task", {})), experiment(**fields), hooks, RunContext(artifacts=folder)
    )
    for _ in loop.run():
        pass
    return loop


class Keeps(Hook):
    """Takes the last bias from the optimizer. Keeps the gradients of each step and the parameters
    after it."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.gradients: dict[int, np.ndarray[Any, Any]] = {}
        self.parameters: dict[int, np.ndarray[Any, Any]] = {}

    def on_start(self, state: State) -> None:
        state.optimizers[None].param_groups[0]["params"].pop()

    def on_gradients(self, state: State) -> None:
        self.gradients[state.step + 1] = (
            next(state.module.parameters()).grad.flatten().clone().numpy()
        )

    def on_update(self, state: State) -> None:
        self.parameters[state.step + 1] = (
            next(state.module.parameters()).detach().flatten().clone().numpy()
        )


def test_histograms_hold_gradients_and_parameters_of_the_step(tmp_path: Path) -> None:
    """As torch's own writer counts them; gradients are clipped by then."""
    keeps = Keeps()
    hooks = {
        "gradient_clip": GradientClip(max_norm=0.01),
        "tensorboard": TensorBoard(histograms=Interval(3, "steps")),
        "keeps": keeps,
    }
    _train(tmp_path, hooks, steps=7)
    events = _events(tmp_path)
    tags = events.Tags()["histograms"]
    assert "parameters/4.bias" in tags
    assert "gradients/4.bias" not in tags, "it is not cleared and grows with each step"
    for tag, values in (
        ("gradients/0.weight", keeps.gradients),
        ("parameters/0.weight", keeps.parameters),
    ):
        drawn = events.Histograms(tag)
        assert [event.step for event in drawn] == [3, 6]
        for event in drawn:
            expected = values[event.step].astype(np.float64)
            assert event.histogram_value.num == expected.size
            assert event.histogram_value.sum == pytest.approx(expected.sum())
            assert event.histogram_value.min == pytest.approx(expected.min())
            assert event.histogram_value.max == pytest.approx(expected.max())


def test_histogram_of_complex_numbers_has_both_parts(start: Start, tmp_path: Path) -> None:
    module = nn.Module()
    module.register_parameter("phase", nn.Parameter(torch.tensor([1 - 7j, 2 + 3j])))
    hook = TensorBoard(histograms=Interval(1, "steps"))
    hook.on_update(start(hook, module=module))
    hook.close()
    (event,) = _events(tmp_path).Histograms("parameters/phase")
    drawn = event.histogram_value
    assert (drawn.num, drawn.min, drawn.max, drawn.sum) == (4, -7, 3, -1)


class Stubborn(nn.Linear):
    """Cannot be traced."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("not with me\nand here is why")
        return super().forward(input)


def test_a_model_that_cannot_be_traced_trains(
    start: Start, tmp_path: Path, caplog: Any, capsys: Any
) -> None:
    batches = [(torch.ones(2, 3), torch.zeros(2))]
    hook = TensorBoard(graph=True)
    with caplog.at_level(logging.WARNING, "hookyard"):
        start(hook, module=Stubborn(3, 1), fresh_batches=lambda phase: iter(batches))
    assert caplog.messages == [
        "TensorBoard has no graph of the model: torch cannot trace it: not with me"
    ]
    assert capsys.readouterr().out == "", "torch prints what it raises"


# The model's graph


def trained(folder: Path, hooks: dict[str, Hook]) -> nn.Module:
    loop = Loop(
        Points(batch_norm=True, dropout=0.5, noisy=True),
        experiment(epochs=1),
        hooks,
        RunContext(artifacts=folder),
    )
    list(loop.run())
    return loop.state.module


def test_graph_has_the_layers_of_the_model_and_training_is_unchanged(tmp_path: Path) -> None:
    drawn = trained(tmp_path, {"tensorboard": TensorBoard(graph=True)})
    plain = trained(tmp_path / "plain", {})
    names = nodes(tmp_path / FOLDER)
    for layer in ("Linear[0]", "BatchNorm1d[1]", "ReLU[2]", "Linear[4]"):
        assert any(name.startswith(f"Forward/Sequential[model]/{layer}/") for name in names), (
            f"{layer} is missing in {sorted(names)}"
        )
    assert numbers(drawn) == numbers(plain)


def _record(state: State) -> None:
    state.record_image("samples", torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    state.record_table("worst", pd.DataFrame({"word": ["a|b"], "score": [0.5]}))
    state.add_media("matrix", "classes", partial(encode_matrix, np.eye(3), ""))


def test_recorded_images_and_tables_are_drawn(start: Start, tmp_path: Path) -> None:
    hook = TensorBoard()
    writer = MediaWriter()
    state = start(hook, media=writer, phase="val", step=7)
    _record(state)
    writer.close()
    hook.on_end(state)
    events = _events(tmp_path)
    (image,) = events.Images("val/samples")
    assert (image.step, image.width, image.height) == (7, 2, 2)
    pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    np.testing.assert_array_equal(pixels, [[0, 255], [255, 0]])
    (classes,) = events.Images("val/classes")
    assert classes.encoded_image_string == draw_matrix(encode_matrix(np.eye(3), ""))
    (table,) = events.Tensors("val/worst/text_summary")
    shown = "| word | score |\n| --- | --- |\n| a\\|b | 0.5 |"
    assert (table.step, make_ndarray(table.tensor_proto)[0].decode()) == (7, shown)


@pytest.mark.parametrize("axis", ["step", "iteration", "samples", "epoch"])
def test_resume_draws_again_what_it_has_deleted(start: Start, tmp_path: Path, axis: Any) -> None:
    """Each at the position of the checkpoint, as a validation before it, and a later one is gone."""
    storage = Storage(tmp_path)
    places: list[dict[str, Any]] = [
        {"step": 2 * epoch, "iteration": 4 * epoch, "world_samples": 20 * epoch, "epoch": epoch}
        for epoch in (1, 2, 3)
    ]
    writer = MediaWriter(storage)
    hook = TensorBoard(axis=axis)
    state = start(hook, media=writer, phase="val", epoch_completed=True)
    for place in places:
        for name, value in place.items():
            setattr(state, name, value)
        _record(state)
    writer.close()
    hook.on_end(state)

    hook = TensorBoard(axis=axis)
    state = start(hook, media=MediaWriter(storage, kept=6), **places[1], epoch_completed=True)
    hook.on_end(state)
    field = "world_samples" if axis == "samples" else axis
    expected = [place[field] for place in places[:2]]
    assert [image.step for image in _events(tmp_path).Images("val/samples")] == expected
    assert [image.step for image in _events(tmp_path).Images("val/classes")] == expected
