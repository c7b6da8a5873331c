import importlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load_experiment
from orchestrator.errors import ConfigError
from orchestrator.experiment import task_methods
from orchestrator.experiment.task_methods import (
    check_required_methods,
    find_misspelled_methods,
    find_wrong_arguments,
)
from orchestrator.task import Task
from tests.orchestrator.experiment.samples import HERE, Line

METHODS = [name for name in vars(Task) if not name.startswith("_") and name != "progress"]


class W:
    """Methods with wrong arguments, and two methods with right ones."""

    def one(self, output: Any) -> Any: ...

    def more(self, model: Any, batch: Any, mask: Any) -> Any: ...

    def any(self, *arguments: Any) -> Any: ...

    def tuned(self, model: Any, lr: float, *, wd: float = 0) -> Any: ...


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("loss", W.one, "T.loss() must take (output, batch), got (output)"),
        ("forward", W.more, "T.forward() must take (model, batch), got (model, batch, mask)"),
        ("data", W.one, "T.data() must take (), got (output)"),
        ("collate", staticmethod(lambda: None), "T.collate() must take (samples), got ()"),
        ("loss", W.any, None),
        ("collate", staticmethod(lambda samples: None), None),
        ("optimizer", W.tuned, None),
    ],
)
def test_task_method_with_wrong_arguments_is_located(
    name: str, method: Any, expected: str | None
) -> None:
    task = dataclass(type("T", (Line,), {name: method, "__module__": HERE}))()
    problems = list(find_wrong_arguments(task))
    assert len(problems) == (expected is not None)
    assert all(
        expected in problem.message and "test_task_methods.py:" in problem.message
        for problem in problems
    )


@pytest.mark.parametrize("name", METHODS)
def test_misspelled_task_method_gets_the_nearest_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_methods, "_read_modules", lambda classes: "a module")
    without_a_letter = {name[:place] + name[place + 1 :] for place in range(1, len(name))}
    with_another = {f"{name[:place]}x{name[place + 1 :]}" for place in range(1, len(name))}
    for misspelled in (without_a_letter | with_another) - {*METHODS}:
        task = type("T", (Task,), {misspelled: lambda self: None, "__module__": "nowhere"})
        (problem,) = find_misspelled_methods(task)
        assert f"T.{misspelled}() is never called" in problem.message
        assert f"did you mean '{name}'?" in str(problem)


def test_missing_method_may_be_misspelled() -> None:
    methods = {"modle": lambda self: None, "loss": lambda self, output, batch: None}
    task = type("T", (Task,), {**methods, "__module__": "nowhere"})
    with pytest.raises(ConfigError) as refused:
        check_required_methods(task)
    message = "task: T must define data(), model() (rename modle() to model())"
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        ("class T(Task):\n    def optimiser(self, model): ...", "optimizer"),
        ("class T(Task):\n    @staticmethod\n    def colate(samples): ...", "collate"),
        # Helpers: private names, names that the modules use, and names near none.
        (
            "class T(Task):\n    def losses(self, o, b): ...\n"
            "    def loss(self, o, b): return self.losses(o, b)",
            None,
        ),
        (
            "class T(Task):\n    def models(self): ...\n"
            "    def model(self): return getattr(self, 'models')()",
            None,
        ),
        (
            "class B(Task):\n    def loss(self, o, b): self.targets(b)\n"
            "class T(B):\n    def targets(self, b): ...",
            None,
        ),
        (
            "class T(Task):\n    def _optimiser(self): ...\n    def generate(self, prompt): ...",
            None,
        ),
        (
            "class T(Task):\n    def model(self): ...\n    def data(self): ...\n"
            "    def loss(self, o, b): ...",
            None,
        ),
    ],
)
def test_methods_that_something_calls_are_not_misspelled(
    code: str, meant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "misspelled_example.py").write_text(f"from orchestrator import Task\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    problems = list(find_misspelled_methods(importlib.import_module("misspelled_example").T))
    assert len(problems) == (meant is not None)
    assert all(f"did you mean '{meant}'?" in str(problem) for problem in problems)


def test_method_that_only_another_module_calls_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "helped.py").write_text(
        "from tests.tasks import Points\nclass Helped(Points):\n    def metric(self): ...\n"
    )
    (tmp_path / "helped.yaml").write_text("name: helped\ntask: helped:Helped\nepochs: 1\n")
    with caplog.at_level(logging.WARNING, "hookyard"):
        load_experiment(tmp_path / "helped.yaml")
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith(
        f"task: Helped.metric() is never called in its own module ({tmp_path}/helped.py:3)"
    )
