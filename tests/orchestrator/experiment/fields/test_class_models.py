"""Models of a class: a config is checked against its fields, or its signature."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.class_models import make_fields_model, make_signature_model
from orchestrator.experiment.fields.validation import validate
from tests.orchestrator.experiment.samples import Wide


def test_unreadable_types_are_reported() -> None:
    @dataclass
    class Odd:
        thing: "Nowhere" = None  # noqa: F821

    with pytest.raises(
        ConfigError,
        match=r"fields of .*Odd cannot be read: NameError: name 'Nowhere' is not defined",
    ):
        make_fields_model(Odd, "x")


@pytest.mark.parametrize(
    ("cls", "values", "path", "message"),
    [
        (torch.optim.Adam, {"betas": [0.9]}, "o.betas.1", "is missing"),
        (
            torch.optim.lr_scheduler.StepLR,
            {"step_size": 1.5},
            "o.step_size",
            "must be an integer, got 1.5",
        ),
        (Wide, {"lr": 0.1, "reach": "x"}, "o.reach", "must be an integer, got 'x'"),
    ],
)
def test_arguments_are_checked_against_the_signature(
    cls: type, values: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(make_signature_model(cls), values, "o")
    assert {problem.path: problem.message for problem in caught.value.problems} == {path: message}
