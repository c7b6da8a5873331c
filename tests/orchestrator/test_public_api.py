"""The public API, pinned: what is added or taken away here is a decision."""

import hooks
import orchestrator

PUBLIC = [
    "CheckpointError",
    "ConfigError",
    "Experiment",
    "HookyardError",
    "Run",
    "RunError",
    "StorageError",
    "Sweep",
    "Task",
    "TrainingSession",
    "UsageError",
    "list_runs",
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
        assert name in dir(orchestrator)


def test_every_hook_that_ships_can_be_imported_by_its_class() -> None:
    assert all(getattr(hooks, hook.__name__) is hook for hook in hooks.HOOKS.values())
