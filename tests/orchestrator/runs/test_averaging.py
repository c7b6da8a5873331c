"""An average made after training is the one that training with its std would have kept, as far as
it says of itself."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from hooks import Hook, State
from hooks.model.power_average import compute_exponent
from orchestrator import Run, run
from orchestrator.cli import app
from orchestrator.runs.averaging import MAX_ERROR
from tests.hooks.training.test_ema import direct
from tests.orchestrator.loop.step.test_turns import NONE, written
from tests.orchestrator.runs.several_ranks import train_on_ranks
from tests.tasks import described

POWER = {"average": "power", "std": [0.05, 0.10], "snapshots": "4 steps"}


@dataclass
class Trail(Hook):
    """Keeps every value of the weights in a file."""

    def __post_init__(self) -> None:
        self.values: list[list[Tensor]] = []

    def on_update(self, state: State) -> None:
        self.values.append([parameter.detach().double() for parameter in state.module.parameters()])

    def on_end(self, state: State) -> None:
        torch.save(self.values, state.artifacts / "trail.pt")


def averaging(**fields: Any) -> Any:
    hooks = {"ema": POWER, "checkpoint": {"keep": 1}, **fields.pop("hooks", {})}
    return described(**{"epochs": 6, "task_args": {"batch_norm": True}, "hooks": hooks, **fields})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        averaging(hooks={"trail": {"type": f"{__name__}:Trail"}}),
        tmp_path_factory.mktemp("runs"),
        local=True,
    )


def invoke(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert (result.exit_code, "Traceback" in result.output) == (code, False), result.output
    return result.output


@pytest.mark.parametrize(
    ("std", "at"), [(0.05, None), (0.10, 28), (0.07, None), (0.07, 28), (0.15, None)]
)
def test_average_is_the_weighted_sum_within_its_error(
    done: Run, std: float, at: int | None
) -> None:
    """By Cauchy-Schwarz, a weight's error is at most the distance of the profiles times the norm of
    its values."""
    made = done.average(std, at)
    assert (made.step, made.std) == (at or 42, std)
    values = torch.load(Path(done.path) / "trail.pt", weights_only=True)[: made.step]
    g = compute_exponent(std)
    norm = (g + 1) / ((2 * g + 1) * made.step) ** 0.5
    names = [name for name, _ in done.load("last").named_parameters()]
    for place, (name, expected) in enumerate(
        zip(names, direct(values, [*range(1, made.step + 1)], std), strict=True)
    ):
        bound = made.error * norm * torch.stack([value[place] for value in values]).norm(dim=0)
        assert ((made.weights[name].double() - expected).abs() <= bound + 1e-6).all()
    assert made.error <= (1e-6 if std in POWER["std"] else MAX_ERROR)


def test_other_tensors_of_an_average_are_the_checkpoint_s(done: Run) -> None:
    made, kept = done.average(0.07), done.weights("last")
    assert made.weights.keys() == kept.keys()
    assert all(value.dtype == kept[name].dtype for name, value in made.weights.items())
    assert torch.equal(made.weights["1.running_var"], kept["1.running_var"])
    assert sum(term.factor for term in made.terms) == pytest.approx(1, abs=0.01)
    assert {*range(4, 42, 4), 42} <= {
        term.step for term in made.terms
    }  # each 4 steps, and the last


def test_the_command_writes_what_evaluate_and_init_take(done: Run, tmp_path: Path) -> None:
    """That of the std which validation ran with is measured as the run reported it."""
    text = invoke("average", done.path, "--std", 0.05)
    *_, wrote, measure = text.splitlines()
    file = wrote.removeprefix("wrote ")
    assert file == f"{done.path}/averages/epoch-0006-std-0.05.pt"
    arguments = measure.partition("hookyard ")[2].split()
    report = json.loads(invoke(*arguments, "--json").partition("\n{")[2].join(["{", ""]))
    assert report["path"].endswith("/evaluations/epoch-0006-val")
    assert report["metrics"]["val/loss"] == pytest.approx(done.reports()[-1]["val/loss"], rel=1e-6)
    wide = tmp_path / "wide.safetensors"
    made = json.loads(
        invoke("average", done.path, "--std", 0.15, "--at", 28, "--output", wide, "--json")
    )
    assert (made["file"], made["step"], made["checkpoint"]) == (str(wide), 28, "epoch-0004")
    fields = {"task_args": {"batch_norm": True}, "init": {"from": str(wide), "strict": True}}
    begun = run(
        described(epochs=1, optimizer={"type": "SGD", "lr": 0.0}, **fields), tmp_path, local=True
    )
    expected = done.average(0.15, 28).weights
    assert all(
        torch.equal(begun.weights("last")[name], expected[name]) for name in ("0.weight", "4.bias")
    )


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ["--std", 0.005],
            r"the std 0\.005 cannot be approximated with \d+ snapshots of \S+ up to step 42.* Use a std near those",
        ),
        (["--std", 0.4], r"the std must be greater than 0 and at most 0\.2886.*got 0\.4"),
        (["--std", "nan"], "the std must be greater than 0"),
        (
            ["--std", 0.07, "--at", 11],
            r"no snapshot at step 11; there are 4, 8, 12, 16, 20, \d+ and others",
        ),
        (["--std", 0.07, "--output", "/proc/x.pt"], r"cannot write /proc/x\.pt"),
        (["--std", 0.07, "--hook", "slow"], "the hook must be one of ema.* got slow"),
    ],
)
def test_std_that_snapshots_do_not_approximate_is_refused(
    done: Run, words: list[Any], answer: str
) -> None:
    before = sorted(Path(done.path).rglob("*"))
    assert re.search(answer, invoke("average", done.path, *words, code=2))
    assert sorted(Path(done.path).rglob("*")) == before


def test_run_without_snapshots_error_names_the_setting(tmp_path: Path) -> None:
    plain = run(described(epochs=1, hooks={"ema": {}}), tmp_path, local=True)
    assert (
        "has no snapshots; train with hooks: {ema: {average: power, std: [0.05, 0.10]}}"
        in invoke("average", plain.path, "--std", 0.07, code=2)
    )


def test_damaged_snapshot_is_a_usage_error(tmp_path: Path) -> None:
    broken = run(averaging(epochs=3), tmp_path, local=True)
    file = Path(broken.path) / "checkpoints/step-00000012/ema.pt"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    assert "ema.pt is damaged" in invoke("average", broken.path, "--std", 0.07, code=2)


def test_average_over_turns_ends_with_the_last_step_of_any_optimizer(tmp_path: Path) -> None:
    experiment = written(
        task_args={"order": "dg d"}, hooks={**NONE, "checkpoint": {}, "ema": POWER}
    )
    trained = run(experiment, tmp_path, local=True)
    made, kept = trained.average(0.05), trained.weights("last")
    assert (made.step, made.error) == (trained.stats["step"].max(), pytest.approx(0, abs=1e-6))
    for name, value in kept.items():
        torch.testing.assert_close(made.weights[name], value)


def test_ranks_and_shards_give_the_same_average(tmp_path: Path) -> None:
    ddp, fsdp = (
        averaging(epochs=3, task_args={}, workers={"count": 2, "strategy": strategy})
        for strategy in ("ddp", "fsdp")
    )
    whole, shards = (one.average(0.07) for one in train_on_ranks(2, tmp_path, ddp=ddp, fsdp=fsdp))
    assert whole.terms == shards.terms
    for name, value in whole.weights.items():
        torch.testing.assert_close(shards.weights[name], value, rtol=1e-4, atol=1e-6)
