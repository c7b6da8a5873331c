"""Classes of a script or a notebook: what is carried of them is enough for a process that has none of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator import Experiment, UsageError, run
from orchestrator.engines import main_classes
from orchestrator.engines.main_classes import with_classes_of_main

CELL = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from hooks import Hook
from tests.orchestrator.config.samples import Line

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
"""

ELSEWHERE = """
import pickle, sys
from orchestrator.config.resolve import resolve
resolved = resolve(pickle.load(sys.stdin.buffer))
print(type(resolved.task).__name__, resolved.task.depth, resolved.task.scaled(), resolved.hooks["marks"].pace)
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a script or a notebook defines."""
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(CELL, vars(cell))
    return vars(cell)


def experiment(main: dict[str, Any]) -> Experiment:
    return Experiment(task=main["Cell"](width=2, depth=4), epochs=1, hooks={"marks": main["Marks"]()})


def test_another_process_resolves_what_this_one_defines(main: dict[str, Any]) -> None:
    import pickle

    source = with_classes_of_main(experiment(main).source)
    told = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=pickle.dumps(source), capture_output=True, check=True
    )
    assert told.stdout.decode().split() == ["Cell", "4", "6.0", "2"]


def test_it_is_written_into_no_file_but_the_code_is_kept(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_classes_of_main(experiment(main).source).main_classes
    assert "main_classes" not in with_classes_of_main(experiment(main).source).record()
    monkeypatch.setattr("inspect.getsource", lambda cls: f"class {cls.__name__}: ...")
    done = run(experiment(main), tmp_path, local=True)
    assert (Path(done.path) / "main.py").read_text() == "class Base: ...\n\nclass Cell: ...\n\nclass Marks: ..."


def test_what_cannot_be_sent_is_refused_before_anything_begins(
    main: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_classes, "LARGEST_BYTES", 100)
    with pytest.raises(
        UsageError,
        match=r"Cell, Marks of the script or notebook use 0 MiB of its variables.*load or create them in data\(\)",
    ):
        run(experiment(main), tmp_path)
    main["SCALE"] = (one for one in ())
    with pytest.raises(UsageError, match=r"cannot be sent to other processes \(TypeError: .*generator.*local=True"):
        run(experiment(main), tmp_path)
    assert list(tmp_path.iterdir()) == []
