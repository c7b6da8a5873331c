"""Changed settings of an optimizer's groups."""

from typing import Any

from orchestrator.loop.step.scaling import change_group


def test_a_key_that_an_earlier_version_of_the_optimizer_lacked_gets_its_value() -> None:
    group: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
    change_group(group, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.8, "extra": 0.5})
    assert group == {"lr": 0.05, "momentum": 0.8, "extra": 0.5}
