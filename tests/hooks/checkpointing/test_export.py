"""What is exported against the model in eval mode; and that training does not notice."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.export import Export
from hooks.training.ema import EMA
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers

TASK = Points(train=52, val=23, batch_norm=True, dropout=0.4, noisy=True)


class Scaled(nn.Module):
    """Behaves otherwise in training; takes a keyword and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def forward(self, points: Tensor, scale: Tensor) -> dict[str, Tensor]:
        output = self.layers(points) * scale
        return {"output": output, "sum": output.sum(1)}


def scaled_state(folder: Path, samples: int = 4) -> State:
    torch.manual_seed(0)
    batch = (torch.randn(samples, 5), torch.rand(samples, 1))
    return State(
        module=Scaled(),
        artifacts=folder,
        fresh_batches=lambda phase: iter([batch]),
        forward=lambda model, batch: model(scale=batch[1], points=batch[0]),
        step=3,
    )


def exported(state: State, **fields: Any) -> Path:
    hook = Export(**fields)
    hook.on_start(state)
    hook.on_end(state)
    (file,) = (state.artifacts / "export" / "step-00000003").glob("model.*[!a]")
    return file


@pytest.mark.parametrize("skips", [False, True])
def test_end_is_exported_unless_the_newest_export_is_of_it(skips: bool, tmp_path: Path) -> None:
    """An iteration that skips its update may change buffers, so its export is another one."""
    state = scaled_state(tmp_path)
    hook = Export()
    state.iteration = state.step_iteration = 3
    hook.on_step(state)
    state.iteration += skips
    hook.on_end(state)
    skipped = ["step-00000003-iteration-00000004"] if skips else []
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == [
        "step-00000003",
        *skipped,
    ]


def in_eval(module: nn.Module, *arguments: Any, **named: Any) -> Any:
    """By a copy, so that the model itself is not touched."""
    with torch.no_grad():
        return copy.deepcopy(module).eval()(*arguments, **named)


def load_pt2(file: Path) -> Any:
    return torch.export.load(file).module()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("written", "load", "samples"),
    [
        ("pt2", load_pt2, 4),
        ("pt2", load_pt2, 1),
        ("trace", torch.jit.load, 4),
        ("trace", torch.jit.load, 1),
        ("script", torch.jit.load, 4),
    ],
)
def test_exported_file_computes_the_outputs_of_eval_mode_for_any_batch_size(
    written: Any, load: Any, samples: int, tmp_path: Path
) -> None:
    """ClassyVision traces in training mode: its file drops activations, and BatchNorm learns as it
    is traced."""
    state = scaled_state(tmp_path, samples)
    module = state.module
    module.layers[1].eval()
    before = numbers(module)
    drawn = torch.get_rng_state()
    program = load(exported(state, format=written))
    assert numbers(module) == before
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [child.training for child in module.modules()] == [True, True, True, False, True]
    for size in (1, 7):
        given = {"scale": torch.rand(size, 1), "points": torch.randn(size, 5)}
        found = program(**given)
        for name, expected in in_eval(module, **given).items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


class Restless(nn.Module):
    """Never the same output: what is read back cannot agree."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 2 * torch.ones_like(x).bernoulli(0.5)


def restless_state(folder: Path) -> State:
    return State(
        module=Restless(),
        artifacts=folder,
        fresh_batches=lambda phase: iter([(torch.zeros(64, 5),)]),
        step=3,
    )


def test_file_with_other_outputs_is_deleted_and_reported(tmp_path: Path) -> None:
    earlier = tmp_path / "export" / "step-00000003" / "model.pt2"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("right")
    said = r"output 0 differs from the model's by up to 2, more than the tolerance of 0.0001"
    with pytest.raises(ValueError, match=said):
        Export().on_end(restless_state(tmp_path))
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["step-00000003"]
    assert earlier.read_text() == "right"


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (
            lambda model, batch: model.layers(batch[0]),
            "calls parts of the model instead of the model",
        ),
        (lambda model, batch: model("no tensor", batch_first=True), "without a tensor"),
    ],
)
def test_unexportable_model_error_has_the_reason(forward: Any, said: str, tmp_path: Path) -> None:
    state = scaled_state(tmp_path)
    state.module.forward = lambda *arguments, **named: (
        None if named else Scaled.forward(state.module, *arguments)
    )
    state.forward = forward
    with pytest.raises(ValueError, match=said):
        Export().on_end(state)
    assert state.module.training


# In a run


def train(folder: Path, hooks: dict[str, Hook], **fields: Any) -> tuple[Loop, list[dict[str, Any]]]:
    loop = Loop(TASK, experiment(**fields), hooks, RunContext(artifacts=folder))
    return loop, [report.metrics for report in loop.run()]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("model.*"))


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("0", ["epoch-0003"]),
        ("2", ["epoch-0002", "epoch-0003"]),
        ("1", ["epoch-0001", "epoch-0002", "epoch-0003"]),
        ("10 steps", ["epoch-0003", "step-00000010", "step-00000020"]),
    ],
)
def test_it_exports_at_its_interval_and_at_the_end(
    every: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(hook: Export, state: State) -> None:
        written.append(
            f"epoch-{state.epoch:04d}" if state.phase_iteration == 0 else f"step-{state.step:08d}"
        )

    written: list[str] = []
    monkeypatch.setattr(Export, "_write", write)
    train(tmp_path, {"export": Export(every=Interval.parse(every))}, epochs=3)
    assert sorted(written) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("evaluate", "config", "averaged"),
    [
        ("ema", {}, True),
        ("both", {}, False),
        ("both", {"hooks": {"checkpoint": {"best": "val/ema/accuracy"}}}, True),
        ("raw", {}, False),
    ],
)
def test_the_evaluated_weights_are_exported(
    evaluate: Any, config: dict[str, Any], averaged: bool, tmp_path: Path
) -> None:
    ema = EMA(decay=0.9, evaluate=evaluate)
    hooks: dict[str, Hook] = {"ema": ema}
    hooks |= {"export": Export(format="trace"), "as_trained": Export(format="trace", weights="raw")}
    if evaluate != "raw":
        hooks["averages"] = Export(format="trace", weights="ema")
    loop = Loop(TASK, experiment(epochs=1), hooks, RunContext(artifacts=tmp_path, config=config))
    list(loop.run())
    points = torch.randn(9, 5)
    raw = in_eval(loop.state.module, points)
    with ema.applied(loop.state):
        averages = in_eval(loop.state.module, points)
    evaluated = averages if averaged else raw
    if evaluate != "raw":
        torch.testing.assert_close(
            torch.jit.load(tmp_path / "averages" / "epoch-0001" / "model.pt")(points), averages
        )
    torch.testing.assert_close(
        torch.jit.load(tmp_path / "export" / "epoch-0001" / "model.pt")(points), evaluated
    )
    torch.testing.assert_close(
        torch.jit.load(tmp_path / "as_trained" / "epoch-0001" / "raw_model.pt")(points), raw
    )
    assert torch.equal(evaluated, raw) != averaged


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            {},
            "weights: must be one of evaluated, raw, got 'ema'; for averages, add the hook ema with evaluate",
        ),
        (
            {"ema": EMA(evaluate="raw")},
            "got 'ema'; for averages, add the hook ema with evaluate: ema or both",
        ),
        (
            {"fast": EMA(evaluate="both"), "slow": EMA(evaluate="both")},
            "weights: must be one of evaluated, raw, fast, slow, got 'ema'$",
        ),
    ],
)
def test_missing_averages_are_refused_at_the_start(
    hooks: dict[str, Hook], message: str, tmp_path: Path
) -> None:
    loop = Loop(
        TASK,
        experiment(),
        {"export": Export(weights="ema"), **hooks},
        RunContext(artifacts=tmp_path),
    )
    with pytest.raises(HookError, match=message):
        next(loop.run())


def _on_a_rank(rank: int, world_size: int, folder: str) -> Any:
    hooks: dict[str, Hook] = {
        "export": Export(format="trace", weights="ema"),
        "ema": EMA(decay=0.9, buffers="ema"),
    }
    task = Points(train=52, batch_norm=True)
    own = Path(folder) / str(rank)
    loop = Loop(
        task,
        experiment(epochs=1),
        hooks,
        RunContext(artifacts=own, world=World(rank=rank, world_size=world_size)),
    )
    list(loop.run())
    points = torch.ones(3, 5)
    with loop.runs[0].plan.hooks["ema"].applied(loop.state):
        averaged = in_eval(loop.state.module, points)
    return averaged.tolist(), names(own)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_master_exports_the_averages_of_all_ranks(tmp_path: Path) -> None:
    (averaged, files), (_, nothing) = on_ranks(_on_a_rank, 2, str(tmp_path))
    assert (files, nothing) == (["export/epoch-0001/model.pt"], [])
    found = torch.jit.load(tmp_path / "0" / files[0])(torch.ones(3, 5))
    torch.testing.assert_close(found, torch.tensor(averaged))
