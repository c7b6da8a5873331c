"""Which trials may share a training, and why others may not."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hooks import Hook, State
from orchestrator.errors import ConfigError
from orchestrator.experiment.sweep.shared_training import find_shared_paths
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
    typed: bool = False


def found(
    space: dict[str, Any] = DECAY, sweep: dict[str, Any] | None = None, **fields: Any
) -> tuple[list[str], str]:
    settings = {
        "metric": "val/loss",
        "mode": "min",
        "search": "grid",
        "space": space,
        **(sweep or {}),
    }
    experiment = described(**{"epochs": 2, "sweep": settings, **fields})
    assert experiment.sweep is not None
    followers = find_shared_paths(experiment.source, experiment.sweep)
    reason = followers.reason_for_all or "; ".join(followers.reasons.values())
    return [*followers.paths], reason


def test_hooks_that_observe_share_a_training_and_others_do_not() -> None:
    space = {
        **DECAY,
        "hooks.ema": {"choice": [None, {}]},
        "hooks.gradient_clip.max_norm": {"grid": [1.0, 2.0]},
        "optimizer.lr": {"grid": [0.1, 0.2]},
    }
    paths, reason = found(space, hooks={"gradient_clip": {}})
    assert sorted(paths) == ["hooks.ema", "hooks.ema.decay"]
    assert reason == "hooks.gradient_clip does not declare `observes`"
    own = {"hooks.own.times": {"grid": [1, 2]}}
    assert found(own, hooks={"own": {"type": f"{__name__}:Observes"}}) == (["hooks.own.times"], "")
    assert found({"optimizer.lr": {"grid": [0.1, 0.2]}}) == ([], "")


def test_values_share_no_training_where_the_class_of_their_hook_is_swept() -> None:
    classes = [f"{__name__}:Observes", f"{__name__}:Watches"]
    space = {"hooks.own.type": {"grid": classes}, "hooks.own.times": {"grid": [1, 2]}}
    paths, reason = found(space, hooks={"own": {"type": classes[0]}})
    assert paths == []
    assert reason == (
        "type sets the class of hooks.own or its order among the hooks; hooks.own.type is swept too"
    )


def test_field_whose_name_begins_like_type_is_not_the_class() -> None:
    space = {"hooks.own.typed": {"grid": [False, True]}, "hooks.own.times": {"grid": [1, 2]}}
    paths, reason = found(space, hooks={"own": {"type": f"{__name__}:Observes"}})
    assert sorted(paths) == ["hooks.own.times", "hooks.own.typed"]
    assert reason == ""


def test_checkpoints_of_trainable_weights_are_not_those_of_another_trial() -> None:
    """Its files would be linked, as those of one training are alike."""
    paths, reason = found({"hooks.checkpoint.weights": {"grid": ["all", "trainable"]}})
    assert paths == []
    assert reason == "the checkpoints of hooks.checkpoint have only the trainable weights"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sweep": {"share_training": False}}, "share_training is false"),
        ({"sweep": {"scheduler": "asha"}}, "asha stops each trial on its own"),
        ({"sweep": {"scheduler": "pbt", "trials": 2}}, "pbt copies weights between trials"),
        ({"sweep": {"engine": "train"}}, "engine: train starts a job for each trial"),
        (
            {
                "hooks": {"ema": {}, "param_scheduler": {"monitor": "val/loss"}},
                "scheduler": {"type": "ReduceLROnPlateau"},
            },
            "steps the scheduler by val/loss",
        ),
        (
            {"hooks": {"ema": {}, "own": {"type": f"{__name__}:Watches"}}},
            "hooks.own may affect training in",
        ),
        (
            {"hooks": {"ema": {}, "own": {"type": f"{__name__}:Saves"}}},
            "hooks.own may affect training in on_saved",
        ),
        (
            {"changes": [{"at": "1 epochs", "set": {"optimizer.lr": 0.01}}]},
            r"changes sets values of hooks and the",
        ),
        ({"accumulate": "auto"}, "accumulate: auto depends on free memory"),
        (
            {"hooks": {"ema": {}, "precise_batch_norm": {"num_samples": 8}}},
            "hooks.precise_batch_norm takes statistics of the weights of hooks.ema",
        ),
    ],
)
def test_training_that_may_depend_on_followers_is_not_shared(
    fields: dict[str, Any], message: str
) -> None:
    paths, reason = found(**{"hooks": {"ema": {}}, **fields})
    assert not paths
    assert message in reason


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"search": "optuna", "trials": 4}, "optuna learns from each trial"),
        ({"scheduler": "asha"}, "asha stops"),
    ],
)
def test_only_fan_out_shares_where_trials_are_chosen_or_stopped_singly(
    sweep: dict[str, Any], message: str
) -> None:
    space = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}, "hooks.ema.every": {"choice": [1, 2]}}
    paths, reason = found(space, {"search": "random", "trials": 4, **sweep}, hooks={"ema": {}})
    assert paths == ["hooks.ema.decay"]
    assert reason.startswith(message)
    assert reason.endswith("use fan_out: [...] to train all values in one run")


def test_fan_out_that_cannot_share_is_refused_with_the_reason() -> None:
    fan_out = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}}
    optuna = {"search": "optuna", "trials": 4}
    for sweep, message in (
        (
            {"scheduler": "hyperband"},
            r"hyperband pauses each trial on its own \(use grid instead of fan_out\)",
        ),
        ({"scheduler": "pbt", "trials": 2}, "pbt copies weights between trials"),
        (
            {**optuna, "metric": ["val/loss", "val/accuracy"], "mode": ["min", "max"]},
            r"several metrics have no single best trial \(use choice instead of fan_out\)",
        ),
        (
            {**optuna, "engine": "train"},
            r"engine: train starts a job for each trial \(use choice instead of fan_out\)",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            found(fan_out, sweep, hooks={"ema": {}})
    with pytest.raises(
        ConfigError, match=r"only parameters of observing hooks can \(use grid instead of fan_out\)"
    ):
        found({"optimizer.lr": {"fan_out": [0.1, 0.2]}})
    with pytest.raises(ConfigError, match="has no effect: the space has no path of a hook"):
        found({"optimizer.lr": {"grid": [0.1, 0.2]}}, {"share_training": False})
