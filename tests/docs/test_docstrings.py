"""Public functions and methods document their parameters, what they return and what they raise."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from hooks import EVENTS, HOOKS
from orchestrator import load_experiment, run, sweep
from orchestrator.cli import app

MODULES = ("orchestrator", "orchestrator.testing", "hooks")
NOT_CALLED_BY_USERS = {
    "Plan": "the loop makes it",
    "Screen": "`train` makes it",
    "SmallTask": "its methods are those of Task",
    "Experiment.model_post_init": "pydantic calls it",
}
"""What has no section for each parameter, and why."""

PREAMBLE = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import TensorDataset
from hooks import GradientClip, Hook, Interval, Steps, at_interval
from orchestrator import *
from orchestrator.testing import check_hook, ready_state, train
"""
"""What the examples import."""


def list_public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions and methods that the public modules offer, by name."""
    for module in map(import_module, MODULES):
        names = getattr(module, "__all__", vars(module))
        for name in names:
            offered = getattr(module, name)
            is_public = name[0] != "_" and not isinstance(offered, ModuleType)
            if not is_public or name in NOT_CALLED_BY_USERS:
                continue
            if inspect.isfunction(offered):
                yield name, offered
            elif inspect.isclass(offered) and offered not in HOOKS.values():
                yield from list_public_methods(offered)


def list_public_methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        label = f"{cls.__name__}.{name}"
        if name[0] != "_" and inspect.isfunction(function) and label not in NOT_CALLED_BY_USERS:
            yield label, function


FUNCTIONS = dict(list_public_functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_every_parameter_and_the_result(name: str) -> None:
    function = FUNCTIONS[name]
    doc = inspect.getdoc(function) or ""
    documented = set(re.findall(r"^    \*{0,2}(\w+): ", doc, re.MULTILINE))
    signature = inspect.signature(function)
    parameters = set(signature.parameters) - {"self", "cls"}
    if name.rpartition(".")[2] in EVENTS:
        # Every event gets it, as the class says.
        parameters.discard("state")
    assert parameters <= documented
    assert not parameters or "\nArgs:\n" in doc
    returns_nothing = signature.return_annotation in (None, "None")
    assert returns_nothing or re.search(r"\n(?:Returns|Yields):\n", doc)
    assert not re.search(r"\b[Rr]aises? \w*Error\b", doc), "exceptions have a section `Raises:`"


def test_public_functions_are_found() -> None:
    assert {"run", "Run.load", "Task.loss", "Hook.on_step", "State.record", "train"} <= set(
        FUNCTIONS
    )


def list_examples() -> Iterator[tuple[str, str]]:
    """Yield the blocks of code in the docstrings of functions, methods and classes."""
    offered: dict[str, Any] = dict(FUNCTIONS)
    for module in map(import_module, MODULES):
        for name in getattr(module, "__all__", vars(module)):
            if inspect.isclass(cls := getattr(module, name)):
                offered[name] = cls
    for name, documented in offered.items():
        doc = inspect.getdoc(documented) or ""
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", doc, re.DOTALL)):
            yield f"{name}-{number}", dedent(code)


EXAMPLES = dict(list_examples())
EXAMPLES_NOT_RUN = {
    "resume-0": "needs a run that was interrupted",
    "resume_sweep-0": "needs a sweep that was interrupted",
    "TrainingSession.restore-0": "is a part of a loop",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The starter's files, with a run and a sweep of them."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        CliRunner().invoke(app, ["init", "spirals"])
        run(load_experiment("spirals.yaml", ["epochs=2"]), local=True)
        shorter = ["epochs=1", "name=spirals-sweep"]
        sweep(load_experiment("spirals_sweep.yaml", shorter), local=True)
        yield folder
        # It was imported before the fixture that forgets what a test imports.
        del sys.modules["spirals"]


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - EXAMPLES_NOT_RUN.keys()))
def test_example_runs(name: str, project: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PREAMBLE, names)
    exec(EXAMPLES[name], names)
