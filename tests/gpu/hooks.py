"""What hooks that ship need to run here."""

from dataclasses import replace
from typing import Any

from tests.orchestrator.testing.test_shipped import CASES as CHECKED
from tests.orchestrator.testing.test_shipped import UNCHECKED

UNTRIED = {**UNCHECKED, "export": "writes as the run ends, and nothing within an iteration"}


def _longer(case: dict[str, Any]) -> dict[str, Any]:
    task = case.get("task")
    return (
        {**case, "task": replace(task, train=48)}
        if isinstance(getattr(task, "train", None), int)
        else case
    )


CASES = {name: _longer(case) for name, case in CHECKED.items()}
"""As for their check, with enough data for ten steps."""
