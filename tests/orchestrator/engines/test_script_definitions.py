"""Classes and functions of a script or a notebook: what is carried of them is enough for a process
that has none of it."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from torch import nn

from orchestrator import Experiment, UsageError, run
from orchestrator.engines import script_definitions
from orchestrator.engines.script_definitions import pickle_main_definitions
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.user_code.main_definitions import define_in_main, read_main_source
from tests.orchestrator.experiment.samples import Line
from tests.ranks import on_ranks

CELL = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from hooks import Hook
from torch import nn
from tests.orchestrator.experiment.samples import Line

SCALE = 3.0

class Base(Line):
    def scaled(self):
        return SCALE * self.width

@dataclass
class Cell(Base):
    depth: Annotated[int, Ge(1)] = 1

@dataclass
class Marks(Hook):
    pace: Annotated[int, Ge(1)] = 2

    def on_step(self, state): ...

def make_teacher():
    return Line().model()

def build_teacher() -> nn.Module:
    return make_teacher()
"""
TEACHER = "__main__:build_teacher"


def _resolve(rank: int, world_size: int, source: ExperimentSource) -> tuple[str, int, float, int]:
    resolved = resolve(source)
    task, marks = cast(Any, resolved.task), cast(Any, resolved.hooks["marks"])
    return type(task).__name__, task.depth, task.scaled(), marks.pace


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a script or a notebook defines."""
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(CELL, vars(cell))
    return vars(cell)


def experiment(main: dict[str, Any]) -> Experiment:
    return Experiment(
        task=main["Cell"](width=2, depth=4), epochs=1, hooks={"marks": main["Marks"]()}
    )


def _with_definitions(experiment: Experiment) -> ExperimentSource:
    """Return the source of an experiment as other processes get it."""
    definitions = pickle_main_definitions(experiment.source)
    assert definitions
    return replace(experiment.source, main_definitions=definitions)


def test_classes_of_main_resolve_in_another_process(main: dict[str, Any]) -> None:
    source = _with_definitions(experiment(main))
    assert on_ranks(_resolve, 1, source) == [("Cell", 4, 6.0, 2)]


def _describe_teacher(rank: int, world_size: int, source: ExperimentSource) -> str:
    distillation = cast(Any, resolve(source).hooks["distillation"])
    return repr(distillation._builder())


def test_function_of_main_resolves_in_another_process(main: dict[str, Any]) -> None:
    made = Experiment(task=main["Cell"](), epochs=1, hooks={"distillation": {"teacher": TEACHER}})
    source = _with_definitions(made)
    assert on_ranks(_describe_teacher, 1, source) == [repr(nn.Linear(1, 1))]


TEXTUAL = """
from dataclasses import dataclass
from typing import Annotated, Literal, Optional
from hooks import Hook
from tests.orchestrator.experiment.samples import Line

class Beat: pass

class Pace:
    missing: "Missing"
    beats: "list[Annotated['Beat', 'Unrelated']]"

class Unrelated: pass

@dataclass
class Marks(Hook):
    pace: Optional["Pace"] = None
    unit: Literal["Unrelated"] = "Unrelated"

    def on_step(self, state): ...

def build_teacher() -> "a small teacher":
    return Line().model()
"""


def _list_defined(rank: int, world_size: int, definitions: bytes) -> list[str]:
    define_in_main(definitions)
    main = vars(sys.modules["__main__"])
    names = ("Beat", "Marks", "Pace", "Unrelated", "build_teacher")
    return [name for name in names if name in main]


def test_classes_that_annotations_name_by_text_are_sent(main: dict[str, Any]) -> None:
    exec(TEXTUAL, main)
    made = Experiment(task=Line(), epochs=1, hooks={"marks": {"type": "__main__:Marks"}})
    definitions = pickle_main_definitions(made.source)
    assert on_ranks(_list_defined, 1, definitions) == [["Beat", "Marks", "Pace"]]


def test_annotation_that_is_no_expression_is_ignored(main: dict[str, Any]) -> None:
    exec(TEXTUAL, main)
    made = Experiment(task=Line(), epochs=1, hooks={"distillation": {"teacher": TEACHER}})
    definitions = pickle_main_definitions(made.source)
    assert on_ranks(_list_defined, 1, definitions) == [["build_teacher"]]


def test_code_of_a_function_is_recorded(
    main: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inspect.getsource", lambda named: f"{named.__name__}: ...")
    config = {"teacher": TEACHER, "task": "__main__:Cell", "other": "__main__:nn"}
    assert read_main_source(config) == "build_teacher: ...\n\nBase: ...\n\nCell: ..."


def test_pickled_classes_are_not_recorded_but_their_code_is(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "main_definitions" not in _with_definitions(experiment(main)).record()
    monkeypatch.setattr("inspect.getsource", lambda cls: f"class {cls.__name__}: ...")
    done = run(experiment(main), tmp_path, local=True)
    assert (
        Path(done.path) / "main.py"
    ).read_text() == "class Base: ...\n\nclass Cell: ...\n\nclass Marks: ..."


def test_classes_that_cannot_be_sent_are_refused(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_definitions, "LARGEST_BYTES", 100)
    with pytest.raises(
        UsageError,
        match=r"Cell, Marks of the script or notebook use .* KiB of its variables.*load them in data\(\)",
    ):
        run(experiment(main), tmp_path)
    main["SCALE"] = (one for one in ())
    with pytest.raises(
        UsageError, match=r"cannot be pickled \(TypeError: .*generator.*define them in a module"
    ):
        run(experiment(main), tmp_path)
    assert list(tmp_path.iterdir()) == []
