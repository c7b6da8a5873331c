from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from tests.hooks.logs.shared.test_hyperparameters import CONFIG

Start = Callable[..., State]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start hooks in a folder, and close their files after the test."""
    hooks: list[Hook] = []

    def start(hook: Hook, **fields: Any) -> State:
        state = State(artifacts=tmp_path, **{"config": CONFIG, **fields})
        hook.on_start(state)
        hooks.append(hook)
        return state

    yield start
    for hook in hooks:
        hook.on_exception(State(), KeyboardInterrupt())
