"""Resolving: classes are found, sections checked together and defaults filled in, with all problems
at once."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from orchestrator import run
from orchestrator.errors import ConfigError
from orchestrator.experiment.resolve import resolve
from tests.orchestrator.experiment.samples import HERE, TEXT, places, problems
from tests.tasks import Points, described


def test_all_problems_are_reported_at_once_with_their_lines(file: Path) -> None:
    text = f"""\
name: a/b
task: {HERE}:Line
task_args: {{widht: 2}}
epochs: 0
batchsize: 8
optimizer: {{type: SGD, lr: '0.1'}}
scheduler: {{type: CosineAnnealingLR, T_Max: 3}}
precision: fp8
workers: {{count: 1.5}}
hooks:
  shadow: {{type: '{HERE}:Shadow', decay: 1.2}}
  band:
    type: {HERE}:Band
    low: 2
    high: 1
  ema:
    decoy: 1
  emma: {{}}
epochs: 4
"""
    assert places(file, text) == {
        "name": 1,
        "task_args.widht": 3,
        "epochs": 19,
        "batchsize": 5,
        "optimizer.lr": 6,
        "scheduler.T_Max": 7,
        "precision": 8,
        "workers.count": 9,
        "hooks.shadow.decay": 11,
        "hooks.band": 12,
        "hooks.ema.decoy": 17,
        "hooks.emma": 18,
    }
    told = "\n".join(map(str, problems(file, text)))
    assert f"{file}:5: batchsize: unknown key (did you mean 'batch_size'?)" in told
    assert f"{file}:11: hooks.shadow.decay: must be at most 1, got 1.2" in told
    assert f"{file}:18: hooks.emma: unknown hook 'emma'" in told
    assert f"{file}:3: task_args.widht: unknown key (did you mean 'width'?)" in told


@pytest.mark.parametrize(
    ("overrides", "path"),
    [(["steps=3"], "steps"), (["epochs=null", "precision=fp8"], ""), (["steps=x"], "steps")],
)
def test_wrong_length_of_the_run_is_reported_once(
    file: Path, overrides: list[str], path: str
) -> None:
    found = [
        problem.path for problem in problems(file, TEXT, *overrides) if problem.path != "precision"
    ]
    assert found == [path]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("hooks: [ema]", "hooks"),
        ("optimizer: SGD", "optimizer"),
        ("optimizer: {lr: x}", "optimizer.lr"),
        ("task: 3", "task"),
        ("workers: 2", "workers"),
        ("validate_every: 1 hour", "validate_every"),
        ("sweep: {metric: x, space: 3}", "sweep.space"),
        ("sweep: 3", "sweep"),
    ],
)
def test_value_of_a_wrong_kind_is_reported_once(file: Path, line: str, path: str) -> None:
    key = line.partition(":")[0]
    lines = {"name": "name: x", "task": f"task: {HERE}:Line", "epochs": "epochs: 1", key: line}
    assert list(places(file, "\n".join(lines.values()))) == [path]


def test_key_that_no_file_can_hold_is_reported_beside_other_mistakes() -> None:
    with pytest.raises(ConfigError) as caught:
        described(**{"\ud800": [], "batch_size": 0})

    assert {problem.path for problem in caught.value.problems} == {"", "batch_size"}


def test_hook_named_in_the_file_is_suggested(file: Path) -> None:
    (problem,) = problems(file, TEXT, "hooks.shadwo.decay=1")
    assert problem.suggestion == "did you mean 'shadow'?"


TWO = {"count": 2}
FSDP = {"count": 2, "strategy": "fsdp"}
TURNS = {
    "task": "tests.orchestrator.loop.step.test_turns:Gan",
    "optimizers": {
        "d": {"type": "SGD", "lr": 0.1, "params": "critic.*"},
        "g": {"type": "SGD", "lr": 0.1, "params": "generator.*"},
    },
}
SWEEP = {"metric": "val/loss", "mode": "min", "space": {"seed": {"choice": [0, 1]}}}
AUTO = {"accumulate": "auto"}
STATIC = {"static_graph": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"workers": {**FSDP, "ddp": STATIC}},
            r"ddp\.static_graph: has no effect without `workers.strategy: ddp`",
        ),
        (
            {"workers": {"ddp": {**STATIC, "find_unused_parameters": True}}},
            "has no effect with static_graph",
        ),
        (
            {"workers": {"ddp": STATIC}, "accumulate": 2},
            r"ddp\.static_graph: cannot be combined with accumulate",
        ),
        (
            {"workers": {"ddp": STATIC}, **TURNS},
            r"ddp\.static_graph: has no effect: each turn exchanges",
        ),
        (
            {"workers": {"ddp": STATIC}, **AUTO},
            r"ddp\.static_graph: has no effect: with accumulate: auto",
        ),
        ({"workers": TWO, "sync_batchnorm": True}, "sync_batchnorm: needs GPUs"),
        ({"workers": {"strategy": "fsdp"}}, r"workers\.strategy: fsdp needs several ranks"),
        (
            {"workers": FSDP, "precision": "fp16"},
            "precision: cannot be combined with workers.strategy: fsdp",
        ),
        (
            {"workers": FSDP, "channels_last": True},
            "channels_last: cannot be combined with workers.strategy: fsdp",
        ),
        ({"workers": FSDP, **TURNS}, "optimizers: cannot be combined with workers.strategy: fsdp"),
        ({"workers": FSDP, **AUTO}, r"workers\.strategy: cannot be combined with accumulate: auto"),
        (
            {"sync_batchnorm": True, **AUTO},
            "sync_batchnorm: cannot be combined with accumulate: auto",
        ),
        ({**TURNS, **AUTO}, r"accumulate: cannot be auto with turns\(\)"),
        (
            {"hooks": {"export": {}}, "workers": FSDP},
            r"hooks\.export: does not work with workers.strategy: fsdp",
        ),
        (
            {"hooks": {"optimizer_stats": {}}, "workers": FSDP},
            r"hooks\.optimizer_stats: does not work with workers",
        ),
        (
            {"hooks": {"precise_batch_norm": {"num_samples": 8}}, "workers": FSDP},
            r"hooks\.precise_batch_norm: does not",
        ),
        ({"hooks": {"output_mask": {}}, **AUTO}, r"hooks\.output_mask: .*accumulate: auto"),
        ({"hooks": {"loss_spike": {}}, **AUTO}, r"hooks\.loss_spike: .*accumulate: auto"),
        (
            {"hooks": {"activation_stats": {}}, **AUTO},
            r"hooks\.activation_stats: does not work with accumulate: auto: it measures the forward",
        ),
        (
            {"workers": {**TWO, "gpu": True}, "cudnn_benchmark": True, "deterministic": True},
            "cudnn_benchmark: cannot",
        ),
        (
            {"workers": {"count": [1, 2]}, "sweep": SWEEP},
            r"workers\.count: must be one number for engine: gang",
        ),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": {"ddp": STATIC}, "sync_batchnorm": True},
        {
            "workers": {
                **TWO,
                "ddp": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
            }
        },
        {"workers": {**TWO, "gpu": True}, "sync_batchnorm": True},
        {"workers": TWO, **AUTO},
        {"workers": {"count": [2, 8]}},
        {"workers": {"count": [1, 2]}, "sweep": {**SWEEP, "engine": "train"}},
        {"workers": FSDP, "hooks": {"gradient_clip": {}, "ema": {"evaluate": "raw"}}},
    ],
)
def test_settings_that_can_be_combined_are_accepted(fields: dict[str, Any]) -> None:
    described(**fields)


@dataclass
class Early(Points):
    """Draws as it is made, from every generator."""

    def __post_init__(self) -> None:
        self.built = nn.Linear(5, 3)
        self.drawn = [random.random(), float(np.random.rand())]

    def model(self) -> nn.Module:
        return self.built


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def read_generators() -> list[Any]:
    numpy_state: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()]


@pytest.mark.parametrize("seed", [0, 7])
def test_task_constructor_draws_from_the_seed(seed: int) -> None:
    source = described(task=f"{__name__}:Early", seed=seed).source
    seed_all(seed)
    weights = nn.Linear(5, 3).weight
    drawn = [random.random(), float(np.random.rand())]

    for before in (1, 2):
        seed_all(before)
        states = read_generators()
        task = resolve(source).task
        assert isinstance(task, Early)
        assert torch.equal(task.built.weight, weights)
        assert task.drawn == drawn
        assert read_generators() == states


# Once


@dataclass
class Counted(Points):
    """Counts how often it is made."""

    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).made += 1


def test_run_in_this_process_makes_the_task_once(tmp_path: Path) -> None:
    Counted.made = 0

    run(described(task=f"{__name__}:Counted", epochs=1), tmp_path, local=True)

    assert Counted.made == 1
