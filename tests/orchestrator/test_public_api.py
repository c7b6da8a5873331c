"""The public API, pinned: what is added or taken away here is a decision."""

from __future__ import annotations

import orchestrator

PUBLIC = [
    "ConfigError",
    "Experiment",
    "HookyardError",
    "Run",
    "RunError",
    "Sweep",
    "Task",
    "UsageError",
    "load_experiment",
    "open_run",
    "open_sweep",
    "resume",
    "resume_sweep",
    "run",
    "sweep",
]


def test_the_names_are_these_and_each_can_be_had() -> None:
    assert sorted(orchestrator.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(orchestrator, name).__name__ == name
