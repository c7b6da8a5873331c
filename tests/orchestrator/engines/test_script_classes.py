"""Classes of a script or a notebook: what is carried of them is enough for a process that has none
of it."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from orchestrator import Experiment, UsageError, run
from orchestrator.engines import script_classes
from orchestrator.engines.script_classes import with_classes_of_main
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.yaml.source import ExperimentSource
from tests.ranks import on_ranks

CELL = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from hooks import Hook
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
"""


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


def test_classes_of_main_resolve_in_another_process(main: dict[str, Any]) -> None:
    source = with_classes_of_main(experiment(main).source)
    assert on_ranks(_resolve, 1, source) == [("Cell", 4, 6.0, 2)]


def test_pickled_classes_are_not_recorded_but_their_code_is(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_classes_of_main(experiment(main).source).main_classes
    assert "main_classes" not in with_classes_of_main(experiment(main).source).record()
    monkeypatch.setattr("inspect.getsource", lambda cls: f"class {cls.__name__}: ...")
    done = run(experiment(main), tmp_path, local=True)
    assert (
        Path(done.path) / "main.py"
    ).read_text() == "class Base: ...\n\nclass Cell: ...\n\nclass Marks: ..."


def test_classes_that_cannot_be_sent_are_refused(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_classes, "LARGEST_BYTES", 100)
    with pytest.raises(
        UsageError,
        match=r"Cell, Marks of the script or notebook use 0 MiB of its variables.*load them in data\(\)",
    ):
        run(experiment(main), tmp_path)
    main["SCALE"] = (one for one in ())
    with pytest.raises(
        UsageError, match=r"cannot be pickled \(TypeError: .*generator.*define them in a module"
    ):
        run(experiment(main), tmp_path)
    assert list(tmp_path.iterdir()) == []
