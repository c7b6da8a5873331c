"""Values in mappings that Python code gives: they arrive as they are, or are refused."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, Interval, State
from orchestrator import ConfigError, Experiment
from orchestrator.experiment.load import check_experiment
from orchestrator.experiment.resolve import resolve
from tests.orchestrator.experiment.samples import Line


@dataclass
class Keeping(Line):
    anything: Any = None
    weights: dict[int, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    root: Path = Path(".")


@dataclass
class Watching(Hook):
    anything: Any = None
    sizes: tuple[int, ...] = ()
    every: Interval = Interval(1)

    def on_step(self, state: State) -> None: ...


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"task_args": {"anything": {0: 1.0}}}, "task_args.anything"),
        ({"task_args": {"anything": (1, 2)}}, "task_args.anything"),
        (
            {"hooks": {"watching": {"type": Watching, "anything": (1, 2)}}},
            "hooks.watching.anything",
        ),
        (
            {
                "sweep": {
                    "metric": "val/loss",
                    "space": {"task_args.anything": {"choice": [{"a": 1}, {0: 1}]}},
                }
            },
            "sweep.space.task_args.anything",
        ),
        (
            {
                "sweep": {
                    "metric": "val/loss",
                    "space": {"task_args.anything": {"choice": [[1, 2], 3]}},
                    "points": [{"task_args.anything": (1, 2)}],
                }
            },
            "sweep.points.0.task_args.anything",
        ),
    ],
)
def test_values_that_would_change_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment(task=Keeping, epochs=1, **values)
    assert [problem.path for problem in caught.value.problems] == [path]

    experiment = Experiment(task=Keeping, epochs=1)
    for made in (experiment, check_experiment(experiment)):
        with pytest.raises(ConfigError, match="would arrive in the workers as"):
            made.model_copy(update=values)


@dataclass
class Requiring(Keeping):
    def required_hooks(self) -> dict[str, Any]:
        return {"watching": Watching}


def test_value_that_may_change_is_refused_if_its_class_is_unknown() -> None:
    """Only the task, once it is made, says of which class its hook is."""
    with pytest.raises(ConfigError, match=r"hooks\.watching\.sizes: could change on the way"):
        Experiment(task=Requiring, epochs=1, hooks={"watching": {"sizes": (3,)}})

    named = {"type": Watching, "sizes": (3,)}
    checked = check_experiment(Experiment(task=Requiring, epochs=1, hooks={"watching": named}))
    assert checked.get_resolved().hooks["watching"] == Watching(sizes=(3,))


def test_the_class_of_a_value_is_looked_up_in_the_current_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the workers look it up. This file's folder is another one."""
    (tmp_path / "tasks_of_this_folder.py").write_text(
        "from dataclasses import dataclass\n"
        "from tests.orchestrator.experiment.samples import Line\n"
        "@dataclass\n"
        "class Sized(Line):\n"
        "    sizes: tuple[int, ...] = ()\n"
    )
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(
        task="tasks_of_this_folder:Sized", epochs=1, task_args={"sizes": (2, 3)}
    )
    task: Any = resolve(experiment.source).task
    assert task.sizes == (2, 3)


def test_a_misspelled_hook_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'emaa' cannot be found here.*did you mean 'ema'"):
        Experiment(task=Keeping, epochs=1, hooks={"emaa": {"decay": (1, 2)}})


def test_values_that_fields_declare_arrive() -> None:
    given = {"weights": {0: 1.0}, "sizes": (1, 2), "root": "a/b", "anything": {"a": [1]}}
    hook = {"type": Watching, "sizes": (3,), "every": "2 steps"}
    checked = check_experiment(
        Experiment(task=Keeping, epochs=1, task_args=given, hooks={"watching": hook})
    )
    resolved = resolve(checked.source)
    assert resolved.task == Keeping(
        anything={"a": [1]}, weights={0: 1.0}, sizes=(1, 2), root=Path("a/b")
    )
    assert resolved.hooks["watching"] == Watching(sizes=(3,), every=Interval(2, "steps"))
    as_text = check_experiment(
        Experiment(task=Keeping, epochs=1, task_args={"weights": {"0": 1.0}, "sizes": [1, 2]})
    )
    assert resolve(as_text.source).task == Keeping(weights={0: 1.0}, sizes=(1, 2))
