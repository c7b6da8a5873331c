"""The key that was meant by an unknown one, and advice on options of other systems."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError

from hooks import Hook
from hooks.training.gradient_clip import GradientClip
from orchestrator.errors import FOREIGN_KEY, UNKNOWN_KEY, Problem
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.messages import convert_errors


@dataclass
class Checkpoint(Hook):
    """A user's own hook, which has the name of one that ships."""

    rate: float = 0.0
    width: int = 0


def explain(cls: type, values: dict[str, Any]) -> Problem:
    model = make_fields_model(cls)
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    (problem,) = convert_errors(caught.value, model, values, "hooks.mine")
    return problem


def test_a_class_of_the_user_gets_no_advice_on_the_hook_that_has_its_name() -> None:
    problem = explain(Checkpoint, {"save_best": "x"})
    assert (problem.code, problem.meant) == (UNKNOWN_KEY, None)
    assert problem.suggestion == "known to Checkpoint: rate, width"


def test_advice_on_a_key_of_the_experiment_means_no_key_of_the_hook() -> None:
    problem = explain(GradientClip, {"grad_scaler_config": 1})
    assert (problem.code, problem.meant) == (FOREIGN_KEY, None)
    assert str(problem.suggestion).startswith("write precision: fp16 of the experiment")


def test_a_missing_space_means_the_key_before_it() -> None:
    problem = explain(Checkpoint, {"width:3": None})
    assert (problem.code, problem.meant) == (UNKNOWN_KEY, "hooks.mine.width")
    assert problem.suggestion == "write a space after `:`"
