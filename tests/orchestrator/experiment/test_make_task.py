"""The task of an experiment, made of its name and its arguments."""

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.make_task import make_task
from tests.orchestrator.experiment.samples import HERE


@pytest.mark.parametrize(
    ("name", "arguments", "path", "message"),
    [
        ("Line", {"width": 0}, "task_args.width", "must be greater than 0, got 0"),
        ("Line", {"widht": 1}, "task_args.widht", "unknown key"),
        ("Forgot", {"depth": 1}, "task_args", "declares depth but is not a dataclass"),
        ("Unfinished", {}, "task", "Unfinished must define "),
        ("Shadow", {}, "task", "must be a subclass of Task"),
    ],
)
def test_invalid_tasks_are_refused(
    name: str, arguments: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_task(f"{HERE}:{name}", arguments)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert message in problem.message
