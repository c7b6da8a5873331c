"""Arguments of one scheduler, and what they say of the optimizer."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from tests.orchestrator.experiment.samples import HERE, refusal
from tests.tasks import described

COSINE = {"type": "CosineAnnealingLR"}
CYCLE = {"type": "OneCycleLR", "max_lr": 1.0}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scheduler": {"type": "StepLr"}}, "did you mean 'StepLR'?"),
        ({"scheduler": {**COSINE, "T_max": 0}}, "scheduler.T_max: must be greater than 0, got 0"),
        (
            {"scheduler": {"type": "MultiStepLR", "milestones": [1, "2"]}},
            r"scheduler.milestones.1: must be an integer",
        ),
        ({"scheduler": {"type": "LinearLR", "start_factor": 2}}, "LinearLR raised"),
        ({"scheduler": {"gamma": 2}}, "scheduler.type: is missing"),
        (
            {"optimizer": {"type": "SGD", "lr": 0.5}, "scheduler": CYCLE},
            r"optimizer.lr: has no effect with OneCycleLR",
        ),
    ],
)
def test_wrong_argument_of_a_scheduler_is_refused(more: Mapping[str, Any], message: str) -> None:
    assert message in refusal(**more)


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
def test_momentum_that_the_scheduler_replaces_is_refused(kind: str) -> None:
    """torch sets the momentum of such a scheduler from its first step on."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    built = torch.optim.SGD([parameter], lr=0.1, momentum=0.7)
    getattr(lr_scheduler, kind)(built, **CYCLES[kind])
    assert built.param_groups[0]["momentum"] != 0.7

    scheduler = {"type": kind, **CYCLES[kind]}
    message = rf"optimizer\.momentum: has no effect with {kind}, .*cycle_momentum=false"
    with pytest.raises(ConfigError, match=message):
        described(
            optimizer={"type": "SGD", "momentum": 0.7}, scheduler=scheduler, steps=9, epochs=None
        )

    kept = {**scheduler, "cycle_momentum": False}
    for optimizer, schedule in (
        ({"type": "SGD", "momentum": 0.7}, kept),
        ({"type": "SGD", "momentum": 0.7, "nesterov": True}, scheduler),
    ):
        made = described(optimizer=optimizer, scheduler=schedule, steps=9, epochs=None)
        assert made.optimizer.arguments["momentum"] == 0.7


@pytest.mark.parametrize("key", ["lr", "lr_scale", "layer_decay", "momentum"])
@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
def test_rate_and_momentum_of_a_group_that_the_scheduler_replaces_are_refused(
    kind: str, key: str
) -> None:
    """torch gives all groups one `max_lr`, and one highest momentum."""
    groups = [{"match": "*bias", key: 0.5}]
    message = rf"optimizer\.groups\.0\.{key}: has no effect with {kind}"
    scheduler = {"type": kind, **CYCLES[kind]}
    with pytest.raises(ConfigError, match=message):
        described(
            optimizer={"type": "SGD", "groups": groups}, scheduler=scheduler, steps=9, epochs=None
        )

    own_rates = {**scheduler, "cycle_momentum": False}
    del own_rates["max_lr" if kind == "OneCycleLR" else "base_lr"]
    made = described(
        optimizer={"type": "SGD", "lr": 0.1, "groups": groups},
        scheduler=own_rates,
        steps=9,
        epochs=None,
    )
    assert made.optimizer.arguments["groups"] == groups


def test_a_momentum_counts_until_a_later_scheduler_varies_it() -> None:
    later = [{"type": "ConstantLR", "end": "4 steps"}, {"type": "OneCycleLR", "max_lr": 0.1}]
    made = described(
        optimizer={"type": "SGD", "lr": 0.1, "momentum": 0.7}, scheduler=later, steps=9, epochs=None
    )
    assert made.optimizer.arguments["momentum"] == 0.7


def test_a_group_may_differ_only_in_the_rate_that_the_scheduler_lists_for_it() -> None:
    groups = [{"match": "*bias", "lr_scale": 0.1}]
    made = described(
        optimizer={"type": "SGD", "groups": groups},
        scheduler={"type": "OneCycleLR", "max_lr": [0.1, 0.01], "cycle_momentum": False},
        steps=9,
        epochs=None,
    )
    assert made.optimizer.arguments["groups"] == groups


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
def test_a_rate_that_the_scheduler_sets_cannot_change_during_the_run(kind: str) -> None:
    scheduler = {"type": kind, **CYCLES[kind], "cycle_momentum": False}
    change = {"at": "3 steps", "set": {"optimizer.lr": 0.3}}
    rate = "max_lr" if kind == "OneCycleLR" else "base_lr"
    with pytest.raises(ConfigError, match=f"because the {rate} of {kind} sets the learning rate"):
        described(
            optimizer={"type": "SGD"},
            scheduler=scheduler,
            hooks={"param_scheduler": {"every": "1 steps"}},
            changes=[change],
            steps=9,
            epochs=None,
        )


def test_scheduler_replaces_the_default_rate() -> None:
    experiment = make_experiment(
        {"name": "line", "task": f"{HERE}:Line", "epochs": 3, "scheduler": CYCLE}
    )
    assert experiment.optimizer.arguments == {}
    assert make_experiment(experiment.model_dump(mode="json")) == experiment


CYCLES = {
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
    "OneCycleLR": {"max_lr": 0.2, "total_steps": 10},
}


@pytest.mark.parametrize("cycle_momentum", [True, False])
@pytest.mark.parametrize("scheduler", CYCLES)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS.keys() - {"LBFGS", "SparseAdam"}))
def test_scheduler_that_varies_momentum_is_refused_where_torch_refuses_it(
    optimizer: str, scheduler: str, cycle_momentum: bool
) -> None:
    entry = {"type": scheduler, **CYCLES[scheduler], "cycle_momentum": cycle_momentum}
    settings: dict[str, Any] = {
        "scheduler": entry,
        "optimizer": {"type": optimizer},
        "steps": 9,
        "epochs": None,
    }
    made = OPTIMIZERS[optimizer]([torch.nn.Parameter(torch.zeros(2, 2))])
    try:
        getattr(lr_scheduler, scheduler)(made, **CYCLES[scheduler], cycle_momentum=cycle_momentum)
    except ValueError:
        message = rf"scheduler\.cycle_momentum: must be false: {optimizer} has no momentum"
        with pytest.raises(ConfigError, match=message):
            described(**settings)
    else:
        assert described(**settings).scheduler is not None
