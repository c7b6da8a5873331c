"""Which trials may share a training, and why others may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hooks import Hook, State
from orchestrator.config.checks.shared_training import riding
from orchestrator.errors import ConfigError
from tests.tasks import described

DECAY = {"hooks.ema.decay": {"grid": [0.5, 0.9]}}


@dataclass
class Watches(Hook):
    """Does not say that it observes."""

    times: int = 1

    def on_phase_end(self, state: State) -> None:
        """Nothing that anybody knows of."""


@dataclass
class Saves(Hook):
    """Could train otherwise after each checkpoint."""

    def on_saved(self, state: State, path: str) -> None:
        """Nothing that anybody knows of."""


@dataclass
class Observes(Watches):
    """Does."""

    observes: ClassVar[bool] = True


def found(space: dict[str, Any] = DECAY, sweep: dict[str, Any] | None = None, **fields: Any) -> tuple[list[str], str]:
    settings = {"metric": "val/loss", "mode": "min", "search": "grid", "space": space, **(sweep or {})}
    experiment = described(**{"epochs": 2, "sweep": settings, **fields})
    assert experiment.sweep is not None
    riders = riding(experiment.source, experiment.sweep)
    return [*riders.paths], "; ".join(riders.reasons.values())


def test_what_observes_rides_and_what_trains_does_not() -> None:
    space = {
        **DECAY,
        "hooks.ema": {"choice": [None, {}]},
        "hooks.gradient_clip.max_norm": {"grid": [1.0, 2.0]},
        "optimizer.lr": {"grid": [0.1, 0.2]},
    }
    paths, reason = found(space, hooks={"gradient_clip": {}})
    assert sorted(paths) == ["hooks.ema", "hooks.ema.decay"]
    assert reason == "hooks.gradient_clip (GradientClip) does not say that it observes"
    own = {"hooks.own.times": {"grid": [1, 2]}}
    assert found(own, hooks={"own": {"type": f"{__name__}:Observes"}}) == (["hooks.own.times"], "")
    assert found({"optimizer.lr": {"grid": [0.1, 0.2]}}) == ([], "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sweep": {"riders": False}}, "riders: false"),
        ({"sweep": {"scheduler": "asha"}}, "scheduler: asha ends trials one by one"),
        (
            {"sweep": {"scheduler": "pbt", "trials": 2}},
            "scheduler: pbt has trials take over weights and values of others",
        ),
        ({"sweep": {"engine": "train"}}, "engine: train makes each trial a job of its own"),
        (
            {
                "hooks": {"ema": {}, "param_scheduler": {"monitor": "val/loss"}},
                "scheduler": {"type": "ReduceLROnPlateau"},
            },
            "steps the scheduler by val/loss",
        ),
        (
            {"hooks": {"ema": {}, "own": {"type": f"{__name__}:Watches"}}},
            "hooks.own (Watches) does not say that it observes, and in on_phase_end it may act",
        ),
        (
            {"hooks": {"ema": {}, "own": {"type": f"{__name__}:Saves"}}},
            "in on_saved it may act on what is each trial's own; write observes: ClassVar[bool] = True",
        ),
        (
            {"changes": [{"at": "1 epochs", "set": {"optimizer.lr": 0.01}}]},
            "changes gives hooks and optimizer other values",
        ),
        ({"accumulate": "auto"}, "accumulate: auto cuts batches by the memory there is"),
    ],
)
def test_nothing_rides_where_training_may_depend_on_what_riders_change(fields: dict[str, Any], said: str) -> None:
    paths, reason = found(**{"hooks": {"ema": {}}, **fields})
    assert not paths
    assert said in reason


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"search": "optuna", "trials": 4}, "search: optuna chooses each trial"),
        ({"scheduler": "asha"}, "scheduler: asha ends"),
    ],
)
def test_where_trials_are_judged_one_by_one_what_is_said_to_ride_rides_alone(sweep: dict[str, Any], said: str) -> None:
    space = {"hooks.ema.decay": {"ride": [0.5, 0.9]}, "hooks.ema.every": {"choice": [1, 2]}}
    paths, reason = found(space, {"search": "random", "trials": 4, **sweep}, hooks={"ema": {}})
    assert paths == ["hooks.ema.decay"]
    assert reason.startswith(said)
    assert reason.endswith("with ride: [...] all of a list share one training")


def test_what_is_to_ride_and_cannot_is_refused_with_the_reason() -> None:
    ride = {"hooks.ema.decay": {"ride": [0.5, 0.9]}}
    optuna = {"search": "optuna", "trials": 4}
    for sweep, said in (
        ({"scheduler": "hyperband"}, "scheduler: hyperband has each trial pause .*; write grid"),
        ({"scheduler": "pbt", "trials": 2}, "scheduler: pbt has trials take over weights and values of others"),
        (
            {**optuna, "metric": ["val/loss", "val/accuracy"], "mode": ["min", "max"]},
            "of several metrics none .* is the best.*; write choice",
        ),
        ({**optuna, "engine": "train"}, "engine: train makes each trial a job of its own; write choice"),
    ):
        with pytest.raises(ConfigError, match=said):
            found(ride, sweep, hooks={"ema": {}})
    with pytest.raises(ConfigError, match="only hooks observe; write grid"):
        found({"optimizer.lr": {"ride": [0.1, 0.2]}})
    with pytest.raises(ConfigError, match="is read by nothing: no path of the space is of a hook"):
        found({"optimizer.lr": {"grid": [0.1, 0.2]}}, {"riders": False})
