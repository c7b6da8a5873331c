"""The values that a population changes."""

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sweep.mutation import list_mutated_paths
from tests.orchestrator.experiment.samples import HERE
from tests.orchestrator.experiment.sweep.spaces import ON, of


def test_population_mutates_hook_fields_and_optimizer_numbers() -> None:
    space = {
        "hooks.ema": ON,
        "hooks.ema.decay": {"uniform": [0.1, 0.9]},
        "optimizer.lr": {"loguniform": [0.01, 1]},
        "optimizer.type": {"choice": ["SGD", "Adam"]},
        "batch_size": {"choice": [8, 16]},
    }
    assert list_mutated_paths(of(space, scheduler="pbt", trials=4)) == [
        "hooks.ema.decay",
        "optimizer.lr",
    ]
    assert list_mutated_paths(
        of(space, scheduler={"type": "pbt", "mutate": ["optimizer.lr"]}, trials=4)
    ) == ["optimizer.lr"]
    assert list_mutated_paths(of(space, trials=4)) == []


NESTEROV = {"type": "SGD", "momentum": 0.9, "nesterov": True}
MOMENTUM = {"optimizer.momentum": {"uniform": [0.5, 0.9]}}
BETAS = {"optimizer.betas": {"choice": [[0.8, 0.99], [0.9, 0.99]]}}


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
@pytest.mark.parametrize(("optimizer", "space"), [(NESTEROV, MOMENTUM), ({"type": "AdamW"}, BETAS)])
@pytest.mark.parametrize("cycle_momentum", [True, False])
def test_momentum_that_a_scheduler_sets_is_not_mutated(
    kind: str, optimizer: dict[str, Any], space: dict[str, Any], cycle_momentum: bool
) -> None:
    settings = {
        "name": "line",
        "task": f"{HERE}:Line",
        "epochs": 1,
        "optimizer": optimizer,
        "scheduler": {"type": kind, "max_lr": 1.0, "cycle_momentum": cycle_momentum},
        "sweep": {"metric": "val/loss", "trials": 4, "space": space, "scheduler": "pbt"},
    }
    if not cycle_momentum:
        assert make_experiment(settings).sweep is not None
        return

    with pytest.raises(ConfigError) as caught:
        make_experiment(settings)
    [problem] = caught.value.problems
    assert problem.path == f"sweep.space.{next(iter(space))}"
    assert problem.message == f"cannot change, because {kind} sets the momentum"
    assert problem.suggestion == "set scheduler.cycle_momentum=false"
