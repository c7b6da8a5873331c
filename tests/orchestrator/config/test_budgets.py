"""Budgets in an experiment: what is read, refused and written, and where trials with them share no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hooks import HOOKS, Budget, Hook, Rhythm, State, paced_by
from hooks.stats.activation_stats import ActivationStats
from orchestrator.config.load import experiment_from_dict, to_dict
from orchestrator.config.python_objects import as_written
from orchestrator.config.resolve import resolve
from orchestrator.config.riding import riding
from orchestrator.config.schema import experiment_schema
from orchestrator.errors import ConfigError
from tests.tasks import described

HERE = __name__


@dataclass
class Own(Hook):
    """A user's, which knows nothing of budgets."""

    every: Rhythm = Rhythm(20, "steps")
    size: int = 1

    @paced_by("every")
    def on_step(self, state: State) -> None:
        """Looks."""


@dataclass
class Nudges(Own):
    """Changes weights at its pace."""

    pace_trains: ClassVar[bool] = True


@dataclass
class Spends(Own):
    """Has a parameter of that name."""

    budget: float = 0.5


def test_a_budget_stands_in_place_of_the_pace_and_is_written_as_it_was() -> None:
    hooks = {
        "activation_stats": {"budget": "1%"},
        "own": {"type": f"{HERE}:Own", "budget": "0.5 %", "size": 3},
        "spends": {"type": f"{HERE}:Spends", "budget": 0.25},
    }
    experiment = described(hooks=hooks)
    resolved = resolve(experiment.source)
    assert {name: resolved.hooks[name].budget for name in hooks} == {
        "activation_stats": Budget(0.01),
        "own": Budget(0.005),
        "spends": 0.25,
    }
    entries = to_dict(resolved.experiment)["hooks"]
    assert entries["own"] == {"type": f"{HERE}:Own", "budget": "0.5%", "size": 3}
    assert "every" not in entries["activation_stats"]
    # what is written is read again, to the same
    again = resolve(experiment_from_dict(to_dict(resolved.experiment)).source)
    assert to_dict(again.experiment) == to_dict(resolved.experiment)


def test_an_object_s_budget_is_what_a_file_would_say() -> None:
    stats = ActivationStats(inputs=True)
    stats.budget = Budget.parse("2%")
    assert as_written({"stats": stats}, "hooks") == {
        "stats": {"type": "activation_stats", "inputs": True, "budget": "2%"}
    }


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        *[
            ({"budget": wrong}, "must be a share of the time, above 0% and at most 100%, such as '1%'")
            for wrong in ("0%", "101%", "1", 1, 0, True, [1])
        ],
        ({"budget": 0.05}, "such as '5%', got 0.05"),
        ({"budget": "1%", "every": "10 steps"}, "chooses the pace, and so does every beside it: say one of them"),
        ({"type": "console", "budget": "1%", "interval": 5}, "chooses the pace, and so does interval"),
        (
            {"type": f"{HERE}:Nudges", "budget": "1%"},
            "cannot be: Nudges changes training at its pace, which must not depend on how long something took",
        ),
        *[
            ({"type": kind, "budget": "1%"}, f"{kind} as it is here has no event with a pace in steps or iterations")
            for kind in (
                "sync_buffers",
                "ema",
                "nan_guard",
                "param_scheduler",
                "checkpoint",
                "export",
                "row_stats",
                "empty_cache",
            )
        ],
    ],
)
def test_what_can_have_no_budget_is_refused_with_the_reason(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(described(hooks={"it": {"type": "activation_stats", **entry}}).source)
    (problem,) = caught.value.problems
    assert problem.path == "hooks.it.budget"
    assert said in problem.message


def test_trials_with_a_budget_on_what_observes_share_no_training() -> None:
    def rides(space: dict[str, Any], **hooks: Any) -> tuple[tuple[str, ...], str]:
        sweep = {"metric": "val/loss", "mode": "min", "search": "grid", "space": space}
        experiment = described(epochs=2, hooks={"ema": {}, **hooks}, sweep=sweep)
        assert experiment.sweep is not None
        found = riding(experiment.source, experiment.sweep)
        return found.paths, "; ".join(found.reasons.values())

    decay = {"hooks.ema.decay": {"grid": [0.5, 0.9]}}
    assert rides(decay, activation_stats={"budget": "1%"}) == (("hooks.ema.decay",), "")  # it is there once, for all
    paths, reason = rides(decay, console={"budget": "1%"})
    assert (paths, reason) == (
        (),
        "hooks.console has a budget, and would be there once for each: what it costs is told in a training of its own",
    )
    paths, reason = rides({"hooks.activation_stats.budget": {"grid": ["1%", "5%"]}})
    assert (paths, reason) == ((), "it says what hooks.activation_stats is, or when it is called")


def test_a_wrong_budget_of_a_sweep_is_refused_before_its_first_trial() -> None:
    sweep = {
        "metric": "val/loss",
        "mode": "min",
        "search": "grid",
        "space": {"hooks.activation_stats.budget": {"grid": ["1%", "0%"]}},
    }
    with pytest.raises(ConfigError, match="above 0% and at most 100%"):
        described(epochs=2, hooks={}, sweep=sweep)


def test_the_schema_has_it_where_there_is_a_pace() -> None:
    definitions = experiment_schema({name: HOOKS[name] for name in ("activation_stats", "ema")})["$defs"]
    assert definitions["hook_activation_stats"]["properties"]["budget"]["pattern"]
    assert "budget" not in definitions["hook_ema"]["properties"]
