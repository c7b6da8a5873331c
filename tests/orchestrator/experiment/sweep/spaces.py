"""Sweeps for tests, made of their space."""

from typing import Any

from orchestrator.experiment.sections.sweep import SweepSettings

ON = {"choice": [None, {}, {"average": "stochastic", "decay": 0}]}


def of(space: dict[str, Any], **more: Any) -> SweepSettings:
    return SweepSettings.model_validate({"metric": "val/loss", "space": space, **more})
