"""On a device too the loop trains as torch's own does, bit for bit, and goes on from its own
checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import Interval
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.ema import EMA
from hooks.training.gradient_clip import GradientClip
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.storage import Storage
from tests.gpu.tasks import Pictures, loop_on, raw_on
from tests.tasks import Points, numbers

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("same_numbers_each_time")]


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        pytest.param(Points(), {}, id="fp32"),
        pytest.param(Points(), {"precision": "bf16"}, id="bf16"),
        pytest.param(Points(), {"precision": "fp16"}, id="fp16 with its scaler"),
        pytest.param(Points(), {"accumulate": 3}, id="accumulation"),
        pytest.param(Points(), {"max_norm": 0.1}, id="clipping"),
        pytest.param(Pictures(), {"channels_last": True}, id="channels_last"),
    ],
)
def test_the_loop_is_a_raw_loop_bit_for_bit(
    device: torch.device, task: Points, settings: dict[str, Any]
) -> None:
    clipping = {"clip": GradientClip(settings["max_norm"])} if "max_norm" in settings else {}
    loop = loop_on(
        device,
        task,
        clipping,
        **{key: value for key, value in settings.items() if key != "max_norm"},
    )
    list(loop.run())
    assert next(loop.state.module.parameters()).device == device
    assert numbers(loop.state.module) == numbers(raw_on(device, task, **settings))


@pytest.mark.parametrize("compiles", [True, {"mode": "reduce-overhead"}])
def test_a_compiled_model_trains_as_the_raw_one_to_tolerance(
    cuda: torch.device, compiles: Any
) -> None:
    loop = loop_on(cuda, compile=compiles)
    list(loop.run())
    for name, value in raw_on(cuda, Points()).state_dict().items():
        torch.testing.assert_close(
            loop.state.module.state_dict()[name], value, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    device: torch.device, precision: str, tmp_path: Path
) -> None:
    task = Points(batch_norm=True, dropout=0.4, noisy=True)

    def trained(restore: str | None = None) -> Any:
        hooks = {
            "ema": EMA(decay=0.7),
            "checkpoint": Checkpoint(
                every=Interval(3, "steps"), keep=None, background=precision == "bf16"
            ),
        }
        loop = loop_on(
            device, task, hooks, store=CheckpointStore(Storage(tmp_path)), precision=precision
        )
        if restore:
            loop.restore(restore)
        list(loop.run())
        return numbers(loop.state.module)

    whole = trained()
    assert trained("step-00000003") == whole


@pytest.mark.parametrize(
    ("source", "target", "background"),
    [("device", "cpu", False), ("device", "cpu", True), ("cpu", "device", False)],
)
def test_a_checkpoint_of_a_gpu_is_read_on_a_cpu_and_the_other_way(
    device: torch.device, source: str, target: str, background: bool, tmp_path: Path
) -> None:
    places = {"device": device, "cpu": torch.device("cpu")}

    def loop(place: str) -> Any:
        hooks = {"ema": EMA(decay=0.7), "checkpoint": Checkpoint(background=background)}
        return loop_on(
            places[place],
            Points(batch_norm=True),
            hooks,
            store=CheckpointStore(Storage(tmp_path)),
            epochs=1,
        )

    first, second = loop(source), loop(target)
    list(first.run())
    second.restore("epoch-0001")
    assert numbers(second.state.module) == numbers(first.state.module)
    momentum = [state["momentum_buffer"] for state in second.state.optimizer.state.values()]
    assert {one.device for one in momentum} == {places[target]}
    assert [one.tolist() for one in momentum] == [
        state["momentum_buffer"].tolist() for state in first.state.optimizer.state.values()
    ]
