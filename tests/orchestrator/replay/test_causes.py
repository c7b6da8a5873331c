"""The advice follows what holds a value, whatever the modules and attributes of the user are
called."""

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hooks import State
from orchestrator.replay.causes import explain_hidden_state, find_nondeterminism, find_unrestored
from orchestrator.replay.differences import Difference
from orchestrator.replay.digests import Value, digest_state
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.testing.small_task import SmallTask

LOSS = Difference("loss", "the loss of iteration 7 is 1.0, not 2.0")
SAMPLES = Difference("samples", "the samples of iteration 7 differ")
ADVICE = "use the global generators of torch, numpy and random"


@pytest.mark.parametrize("name", ["task", "model", "hooks", "optimizer"])
def test_generator_of_a_module_is_told_from_values_of_the_same_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType(name)
    module.RNG = np.random.default_rng(0)
    monkeypatch.setitem(sys.modules, name, module)

    class Points(Dataset[Any]):
        __module__ = name

        def __len__(self) -> int:
            return 1

    task: Any = SmallTask()
    task.RNG = np.random.default_rng(1)
    net: Any = nn.Linear(1, 1)
    net.RNG = torch.Generator()
    state = State(module=net, model=net, loaders={"train": DataLoader(Points())})
    before = digest_state(state, task, {})
    assert {before[path].kind for path in ("task.RNG", "model.RNG", f"{name}:RNG")} == {
        "task",
        "model",
        "module",
    }
    module.RNG.random()
    (line,) = find_unrestored(before, digest_state(state, task, {}))
    assert line.startswith(f"{name}:RNG is not restored: {ADVICE}")


def test_causes_beyond_the_sixth_are_counted() -> None:
    before = {f"task.a{number}": Value("task", "before", False) for number in range(13)}
    after = {path: Value("task", "after", False) for path in before}
    *lines, rest = find_unrestored(before, after)
    assert (len(lines), rest) == (6, "and 7 more")


def test_state_of_loader_workers_can_only_explain_samples() -> None:
    state = {
        "the train data: Points.rng": Value("data", "", True),
        "the train data: Points.epoch": Value("data", "", False),
        "task.rng": Value("task", "", True),
    }
    in_workers = explain_hidden_state(SAMPLES, state, loader_workers=1)
    assert in_workers.startswith(
        "samples depend on state in the DataLoader workers, such as the train data: Points.rng: "
    )
    outside = "training depends on state outside the attributes"
    assert explain_hidden_state(LOSS, state, loader_workers=1).startswith(outside)
    assert explain_hidden_state(SAMPLES, state, loader_workers=0).startswith(outside)


def test_second_run_from_the_beginning_tells_nondeterminism() -> None:
    first, second = (TrainingRecord(samples={1: "a"}, losses={1: loss}) for loss in (1.0, 2.0))
    assert find_nondeterminism(first, first) is None
    cause = find_nondeterminism(first, second)
    assert cause is not None
    assert cause.startswith(
        "a second run from the beginning differs too (the loss of iteration 1 is 2.0, not 1.0)"
    )
