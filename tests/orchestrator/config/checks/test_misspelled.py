"""A name of a task that has no effect, and is near one that has: refused, and no helper is."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import Task
from orchestrator.config.checks.key_paths import key_paths
from orchestrator.config.checks.misspelled import misspelled_names
from orchestrator.config.load import experiment_from_dict
from orchestrator.errors import ConfigError

NAMES = [name for name in vars(Task) if not name.startswith("_") and name != "progress"]
HERE = [path.stem for path in (Path(__file__).parents[4] / "experiments").glob("*.py")]


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], type[Task]]:
    """Return the class `T` of a module of some code."""

    def define(code: str) -> type[Task]:
        path = tmp_path / "misspelled_example.py"
        path.write_text(f"from dataclasses import dataclass\nfrom orchestrator import Task\n{code}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        task: type[Task] = vars(module)["T"]
        return task

    return define


def edits(name: str) -> Iterator[str]:
    """Yield each name that is one letter away."""
    for place in range(len(name) + 1):
        for letter in (*string.ascii_lowercase, "_"):
            yield name[:place] + letter + name[place:]
            yield name[:place] + letter + name[place + 1 :]
        yield name[:place] + name[place + 1 :]
        yield name[:place] + name[place + 1 : place + 2] + name[place : place + 1] + name[place + 2 :]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_one_letter_away_is_refused_with_the_nearest_name(name: str) -> None:
    wrong = {edit for edit in edits(name) if edit.isidentifier() and not edit.startswith("_") and edit not in NAMES}
    assert len(wrong) > 50
    for signature in (getattr(Task, name), lambda self: None, lambda self, *all_of_them: None):
        for edit in sorted(wrong)[:: 7 if signature is not getattr(Task, name) else 1]:
            task = type("T", (Task,), {edit: signature, "__module__": "nowhere"})
            (problem,) = misspelled_names(task)
            assert problem.path == "task"
            assert f"T.{edit}()" in problem.message
            assert f"did you mean '{name}'?" in (problem.suggestion or ""), edit


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("def optimiser(self, model): ...", "optimizer"),
        ("def metric(self, output, batch): ...", "metrics"),
        ("def losses(self, output, batch): ...", "loss"),
        ("@staticmethod\n    def colate(samples): ...", "collate"),
        ("find_unused = True", "workers.ddp.find_unused_parameters"),
        ("batchsize = 3", "batch_size"),
        ("batch_sizes: int = 3", "batch_size"),
        ("epochs = 5", "epochs"),
        ("num_worker = 2", "loader.num_workers"),
        ("drop_last = True", "loader.drop_last"),
    ],
)
def test_it_is_told_with_what_was_meant(line: str, meant: str, defined: Callable[[str], type[Task]]) -> None:
    (problem,) = misspelled_names(defined(f"class T(Task):\n    {line}"))
    assert f"did you mean '{meant}'" in (problem.suggestion or "")
    assert "has no effect" in problem.message


@pytest.mark.parametrize(
    "name", sorted({path.rpartition(".")[2] for path in key_paths()} - {*NAMES, "name", "notes", "tags"})
)
def test_an_option_of_the_experiment_has_no_effect_in_a_task(name: str) -> None:
    task = type("T", (Task,), {name: 3, "__module__": "nowhere"})
    assert [problem.path for problem in misspelled_names(task)] == ["task"]


@pytest.mark.parametrize(
    "code",
    [
        # What the task's own module uses is a helper.
        "class T(Task):\n    def losses(self, output, batch): ...\n    def loss(self, o, b): return self.losses(o, b)",
        "class T(Task):\n    def sample(self): ...\ndef main(task): task.sample()",
        "class T(Task):\n    def samples(self): ...\n    def data(self): return [s for s in self.samples()]",
        "class T(Task):\n    def models(self): ...\n    def model(self): return getattr(self, 'models')()",
        "class T(Task):\n    classes = 10\n    epochs = 3\n    def model(self): return self.epochs",
        "@dataclass\nclass T(Task):\n    step: int = 3\n    def loss(self, o, b): return self.step",
        "class Base(Task):\n    def loss(self, o, b): return self.targets(b)\n"
        "class T(Base):\n    def targets(self, b): ...",
        "class T(Task):\n    def _optimiser(self): ...",
        "class T(Task):\n    name = 'x'\n    def generate(self, prompt): ...\n    def predict(self, x): ...",
        "class T(Task):\n    def model(self): ...\n    def data(self): ...\n    def loss(self, o, b): ...",
    ],
)
def test_helpers_are_let_be(code: str, defined: Callable[[str], type[Task]]) -> None:
    assert misspelled_names(defined(code)) == []


@pytest.mark.parametrize("module", sorted(HERE))
def test_no_shipped_task_is_refused(module: str) -> None:
    try:
        classes = vars(importlib.import_module(f"experiments.{module}")).values()
    except ImportError:
        pytest.skip("it needs a package that is not installed")
    for task in classes:
        if inspect.isclass(task) and issubclass(task, Task):
            assert misspelled_names(task) == []


def test_a_run_of_it_is_refused_at_once(tmp_path: Path) -> None:
    text = "from tests.tasks import Points\nclass Misspelt(Points):\n    def optimiser(self, model): ...\n"
    (tmp_path / "misspelt_task.py").write_text(text)
    with pytest.raises(ConfigError, match=r"task: Misspelt\.optimiser\(\) has no effect.*did you mean 'optimizer'\?"):
        experiment_from_dict({"name": "x", "task": "misspelt_task:Misspelt", "epochs": 1}, [tmp_path])
