"""Activations against the formulas, taken from the layers by hand."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from hooks import Plan, State
from hooks.interval import Interval
from hooks.stats.activation_stats import ActivationStats
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, experiment

EVERY_STEP = Interval(1, "steps")


def _pass(
    hook: ActivationStats, model: nn.Module, batch: Any, folder: Path, called: Any = None
) -> dict[str, Any]:
    """One training iteration's forward pass; returns what the hook says of it."""
    state = State(module=model, model=called or model, artifacts=folder, phase="train")
    plan = Plan({"activations": hook})
    plan.fire("on_start", state)
    plan.fire("on_batch", state)
    state.model(batch)
    plan.fire("on_forward", state)
    plan.fire("on_phase_end", state)
    return {name: value.item() for name, value in state.info.get("activations", {}).items()} | {
        "row": state.row
    }


def _expected(name: str, values: Tensor) -> dict[str, float]:
    """The formulas as VISSL and numpy have them."""
    numbers = values.detach().double()
    mean = numbers.mean().item()
    return {
        f"{name}/mean": pytest.approx(mean, abs=1e-6),
        f"{name}/spread": pytest.approx((numbers - mean).abs().max().item(), abs=1e-6),
    }


def _without_row(said: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in said.items() if name != "row"}


def test_mean_and_spread_of_each_leaf(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 5), nn.Tanh()))
    batch = torch.randn(6, 3)
    first = model[0](batch)
    second = model[2][0](first.relu())
    said = _pass(ActivationStats(every=EVERY_STEP), model, batch, tmp_path)
    expected = _expected("0", first) | _expected("2.0", second) | _expected("2.1", second.tanh())
    assert _without_row(said) == expected
    table = pd.read_parquet(tmp_path / "activations").set_index("layer")
    measured = table[["mean", "spread"]].stack()
    assert {f"{layer}/{name}": value for (layer, name), value in measured.items()} == expected
    spreads = [
        (values - values.mean()).abs().max().item() for values in (first, second, second.tanh())
    ]
    means = [abs(values.mean().item()) for values in (first, second, second.tanh())]
    assert said["row"]["activation_spread_max"].item() == pytest.approx(max(spreads), abs=1e-6)
    assert said["row"]["activation_spread_min"].item() == pytest.approx(min(spreads), abs=1e-6)
    assert said["row"]["activation_mean_max"].item() == pytest.approx(max(means), abs=1e-6)


Named = namedtuple("Named", "first rest")


class _Nested(nn.Module):
    def forward(self, batch: Tensor) -> Any:
        return {
            "a": (batch, (batch + 1, [batch * 2, None, "text"])),
            "b": Named(batch.long(), batch[:0]),
        }


def test_nested_outputs_are_taken_apart(tmp_path: Path) -> None:
    """VISSL's hook walks round and round in a tuple within a tuple. Integers and empty tensors have
    no spread."""
    batch = torch.randn(6, 3)
    said = _pass(ActivationStats(every=EVERY_STEP), nn.Sequential(_Nested()), batch, tmp_path)
    assert _without_row(said) == _expected("0", batch) | _expected("0#1", batch + 1) | _expected(
        "0#2", batch * 2
    )


@pytest.mark.parametrize("ignored", ["Tanh", "torch.nn.modules.activation.Tanh"])
def test_ignored_types_are_left_out(tmp_path: Path, ignored: str) -> None:
    model = nn.Sequential(nn.Tanh(), nn.ReLU())
    batch = torch.randn(6, 3)
    said = _pass(ActivationStats(every=EVERY_STEP, ignored=(ignored,)), model, batch, tmp_path)
    assert _without_row(said) == _expected("1", batch.tanh().relu())


def test_feature_maps_can_be_sampled_at_their_center(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(75, 2))
    batch = torch.randn(4, 2, 5, 5)
    said = _pass(ActivationStats(every=EVERY_STEP, sample_feature_map=True), model, batch, tmp_path)
    maps = model[0](batch)
    assert _without_row(said) == _expected("0", maps[:, :, 2, 2]) | _expected(
        "1", maps.flatten(1)
    ) | _expected("2", model(batch))


def test_module_hooks_are_there_only_while_a_measured_pass_runs(tmp_path: Path) -> None:
    """Idle iterations call neither the hook nor any module hook."""
    model = nn.Sequential(nn.Linear(2, 2))
    state = State(module=model, artifacts=tmp_path, phase="train")
    plan = Plan({"activations": ActivationStats(every=Interval(3, "steps"))})
    plan.fire("on_start", state)
    plan.drain_costs()
    there = []
    called = []
    for _ in range(6):
        plan.fire("on_batch", state)
        there.append(len(model[0]._forward_hooks))
        model(torch.ones(1, 2))
        plan.fire("on_forward", state)
        assert not model[0]._forward_hooks
        state.step += 1
        called.append(len(plan.drain_costs()))
    assert there == [0, 0, 1, 0, 0, 1]
    assert called == [0, 0, 2, 0, 0, 2]


def test_measurements_of_a_phase_are_read_in_one_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VISSL reads once for each module."""
    read: list[str] = []
    for name in ("cpu", "item", "tolist", "__float__"):
        monkeypatch.setattr(Tensor, name, _noting(name, read))
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    state = State(module=model, artifacts=tmp_path, phase="train")
    plan = Plan({"activations": ActivationStats(every=EVERY_STEP)})
    plan.fire("on_start", state)
    for _ in range(5):
        plan.fire("on_batch", state)
        model(torch.ones(1, 2))
        plan.fire("on_forward", state)
        state.step += 1
    assert read == []
    plan.fire("on_phase_end", state)
    assert read == ["cpu"]
    assert len(pd.read_parquet(tmp_path / "activations")) == 5 * 2


def _noting(name: str, read: list[str]) -> Any:
    method = getattr(Tensor, name)
    return lambda tensor, *arguments: (read.append(name), method(tensor, *arguments))[1]


@pytest.mark.parametrize("finish", ["on_end", "on_exception"])
def test_module_hooks_are_removed_at_the_end(tmp_path: Path, finish: str) -> None:
    """A forward pass that fails never comes to on_forward."""
    model = nn.Sequential(nn.Linear(2, 2))
    state = State(module=model, artifacts=tmp_path, phase="train")
    hook = ActivationStats(every=EVERY_STEP)
    hook.on_start(state)
    hook.on_batch(state)
    assert model[0]._forward_hooks
    getattr(hook, finish)(state, *([ValueError()] if finish == "on_exception" else []))
    assert not model[0]._forward_hooks


def test_a_compiled_model_is_measured(tmp_path: Path) -> None:
    """Module hooks that come after the compilation are not called by compiled code."""
    model = nn.Sequential(nn.Linear(3, 2))
    compiled: Any = torch.compile(model, backend="eager")
    batch = torch.randn(4, 3)
    compiled(batch)
    said = _pass(ActivationStats(every=EVERY_STEP), model, batch, tmp_path, called=compiled)
    assert _without_row(said) == _expected("0", model(batch))
    assert torch._dynamo.eval_frame._stance.stance == "default"


# In the loop


def test_each_micro_batch_of_a_step_is_measured(tmp_path: Path) -> None:
    """Six iterations an epoch, four to a step: steps 2 and 4 are what is left of each epoch."""
    hooks = {"activations": ActivationStats(every=Interval(2, "steps"))}
    list(
        Loop(
            Points(train=44, val=11),
            experiment(accumulate=4),
            hooks,
            RunContext(artifacts=tmp_path),
        ).run()
    )
    assert sorted(set(pd.read_parquet(tmp_path / "activations")["iteration"])) == [5, 6, 11, 12]
