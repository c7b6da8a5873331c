"""The values that a population changes."""

from orchestrator.experiment.sweep.mutation import list_mutated_paths
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
