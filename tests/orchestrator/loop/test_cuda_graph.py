"""A captured step, with a stand-in for the GPU: what is captured changes nothing, and each repeat does again what it
did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks import Hook, State
from hooks.rhythm import Rhythm
from hooks.training.ema import EMA
from hooks.training.param_scheduler import ParamScheduler
from orchestrator.config.load import experiment_from_dict
from orchestrator.config.sections.experiment import Component
from orchestrator.errors import ConfigError, RunError
from orchestrator.loop import cuda_graph
from orchestrator.loop.cuda_graph import Passed
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, Rows, experiment, numbers


class Graphs:
    """Stands in for CUDA's graphs: keeps what a step changes, and gives it back where the step is but captured."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.captures = self.repeats = 0

    def capture(self, run: Callable[[], Passed]) -> tuple[Passed, Callable[[], None]]:
        self.captures += 1
        assert self.loop is not None
        optimizer = self.loop.state.optimizer
        assert optimizer is not None
        rates = [group["lr"] for group in optimizer.param_groups]
        changed = [
            *self.loop.state.module.parameters(),
            *self.loop.state.module.buffers(),
            *(value for one in optimizer.state.values() for value in one.values()),
        ]
        before, generator = [value.detach().clone() for value in changed], torch.get_rng_state()
        passed = run()
        for value, was in zip(changed, before, strict=True):
            value.data.copy_(was)
        torch.set_rng_state(generator)

        def repeat() -> None:
            self.repeats += 1
            present = [dict(group) for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group.update(lr=rate, fused=True)
            again = run()
            for group, values in zip(optimizer.param_groups, present, strict=True):
                group.update(values)
            for old, new in zip(
                (passed.output, passed.loss, *passed.parts.values()),
                (again.output, again.loss, *again.parts.values()),
                strict=True,
            ):
                old.data.copy_(new)

        return passed, repeat


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    graphs = Graphs()
    monkeypatch.setattr(cuda_graph, "captured", graphs.capture)
    monkeypatch.setattr(cuda_graph, "beside_work", lambda device: nullcontext())
    return graphs


def trained(
    graphs: Graphs, task: Points, hooks: Mapping[str, Hook] | None = None, **settings: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], Loop]:
    rows = Rows()
    graphs.loop = loop = Loop(task, experiment(**settings), hooks or {}, RunContext(recorder=rows))
    loop.iterations._on_cpu = not settings.get("cuda_graph")  # what is read of a row stays on a device
    list(loop.run())
    return numbers(loop.state.module), rows.rows, loop


class Parts(Points):
    """A loss of two parts."""

    def loss(self, output: Tensor, batch: Any) -> Any:
        return {"fit": functional.cross_entropy(output, batch[1]), "size": 0.125 * output.square().mean()}


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_it_trains_as_without_a_graph_on_each_batch_once(graphs: Graphs, kind: str) -> None:
    """Rates that change with each step, dropout, a last batch of another shape, a validation between; the places of
    samples in a batch are a tensor of it too. The rates are numbers that float32 holds."""
    momentum = {"momentum": 0.5} if kind == "SGD" else {}
    settings = {
        "optimizer": Component(type=kind, lr=0.125, fused=True, **momentum),
        "scheduler": Component(type="StepLR", step_size=2, gamma=0.5),
    }

    def hooks() -> dict[str, Hook]:
        return {"scheduler": ParamScheduler(every=Rhythm(1, "steps")), "ema": EMA(decay=0.5)}

    task = Parts(dropout=0.25, batch_norm=True)
    expected, rows, plain = trained(graphs, task, hooks(), **settings)
    assert graphs.captures == 0
    found, rows_found, loop = trained(graphs, task, hooks(), cuda_graph=True, **settings)
    # Each epoch of 7 has 3 to warm up and a last one of 4 samples.
    assert (graphs.captures, graphs.repeats) == (2, 6)
    assert found == expected
    for name in ("loss", "fit", "size", "lr", "iteration", "step", "samples", "batch_size"):
        assert [float(row.get(name, -1)) for row in rows_found] == [row.get(name, -1) for row in rows]
    assert plain.state.optimizer is not None
    assert loop.state.optimizer is not None
    assert loop.state.optimizer.state_dict()["param_groups"] == plain.state.optimizer.state_dict()["param_groups"]


class Changes(Hook):
    """Changes a number that a graph has taken in."""

    def on_step(self, state: State) -> None:
        if state.step == 5:
            assert state.optimizer is not None
            state.optimizer.param_groups[0]["momentum"] = 0.75


def test_a_number_of_the_optimizer_that_changes_is_captured_anew(graphs: Graphs) -> None:
    settings: dict[str, Any] = {"optimizer": Component(type="SGD", lr=0.125, momentum=0.5, fused=True), "epochs": 1}
    expected, *_ = trained(graphs, Points(), {"changes": Changes()}, **settings)
    found, *_ = trained(graphs, Points(), {"changes": Changes()}, cuda_graph=True, **settings)
    assert graphs.captures == 2
    assert found == expected


def test_a_number_that_changes_in_each_step_is_an_error_that_names_it(graphs: Graphs) -> None:
    cycle = Component(type="OneCycleLR", max_lr=0.25, total_steps=50)
    settings: dict[str, Any] = {
        "optimizer": Component(type="SGD", lr=0.125, momentum=0.5),
        "scheduler": cycle,
        "cuda_graph": True,
    }
    with pytest.raises(RunError, match="and momentum of the optimizer changes in each"):
        trained(graphs, Points(), {"scheduler": ParamScheduler(every=Rhythm(1, "steps"))}, **settings)


class Named(Points):
    """Batches with text of their own, and points that are a view."""

    def collate(self, samples: list[Any]) -> Any:
        points, labels, places = super().collate(samples)
        return points.t().contiguous().t(), labels, [f"sample {place}" for place in places.tolist()]


def test_batches_may_have_text_and_lie_in_memory_otherwise(graphs: Graphs) -> None:
    settings: dict[str, Any] = {"optimizer": Component(type="SGD", lr=0.125, fused=True), "epochs": 1}
    expected, *_ = trained(graphs, Named(), **settings)
    found, *_ = trained(graphs, Named(), cuda_graph=True, **settings)
    assert (graphs.captures, graphs.repeats) == (1, 3)
    assert found == expected


class Own:
    """A batch that moves itself."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def to(self, device: torch.device) -> Own:
        return self


class Owning(Points):
    def collate(self, samples: list[Any]) -> Any:
        return Own(super().collate(samples))

    def batch_size(self, batch: Any) -> int:
        return len(batch.parts[1])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch.parts[0])

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return super().loss(output, batch.parts)

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {}


def test_a_batch_that_no_graph_can_read_from_is_an_error(graphs: Graphs) -> None:
    with pytest.raises(RunError, match="a step on a batch with a Own"):
        trained(graphs, Owning(), cuda_graph=True)


def test_what_a_captured_step_cannot_do_is_refused_by_name() -> None:
    written = {
        "name": "points",
        "task": "tests.tasks:Points",
        "epochs": 1,
        "cuda_graph": True,
        "precision": "fp16",
        "accumulate": 2,
        "workers": {"count": 2},
        "optimizer": {"type": "RMSprop", "foreach": True},
        "hooks": {"gradient_clip": {}, "nan_guard": {}, "anomaly_detection": {}, "ema": {}, "tensorboard": {}},
    }
    with pytest.raises(ConfigError) as caught:
        experiment_from_dict(written)
    paths = [problem.path for problem in caught.value.problems]
    assert sorted(paths) == sorted(
        [
            "cuda_graph",
            "precision",
            "accumulate",
            "workers.count",
            "optimizer.type",
            "optimizer.foreach",
            "hooks.gradient_clip",
            "hooks.nan_guard",
            "hooks.anomaly_detection",
        ]
    )
    assert "on_gradients, within what is captured" in str(caught.value)
    able = {
        **written,
        "precision": "bf16",
        "accumulate": 1,
        "workers": {"gpu": True},
        "optimizer": {"type": "AdamW"},
        "hooks": {"ema": {}},
    }
    assert experiment_from_dict(able).cuda_graph
