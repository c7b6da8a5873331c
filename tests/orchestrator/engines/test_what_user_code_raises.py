"""An error of user code fails the run with its location."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from orchestrator import run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import RunError, UsageError
from tests.tasks import Points, PointSet, described


class Own(BaseException):
    """No Exception."""


class Wordless(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise LookupError("no words")


RAISED: dict[str, BaseException] = {
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "stop": StopIteration(),
    "surrogate": ValueError("half \udc80"),
    "own": Own("of its own"),
    "no words": Wordless(),
    "long": ValueError("x" * 10_000_000),
    "not picklable": ValueError(lambda: None),
}


@dataclass
class Raises(Hook):
    """Raises at the first step."""

    what: str = "exit"

    def on_step(self, state: State) -> None:
        raise RAISED[self.what]


@pytest.mark.parametrize("what", RAISED)
def test_any_error_fails_the_run_with_its_place(
    tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    hooks = {"raises": {"type": f"{__name__}:Raises", "what": what}}
    with pytest.raises(
        RunError, match=rf"{type(RAISED[what]).__name__}.*{Path(__file__).name}:\d+, in on_step"
    ) as raised:
        run(described(hooks=hooks), tmp_path, "run", local=True)
    folder = RunFolder(tmp_path, "run")
    metadata = folder.read_metadata()
    assert metadata.status == "failed"
    assert metadata.error is not None
    assert type(RAISED[what]).__name__ in metadata.error
    assert metadata.error.encode()
    assert len(metadata.error) < 5_000
    assert len(folder.storage.read("log.txt")) < 10**6
    assert b"Traceback" in folder.storage.read("log.txt")
    assert raised.value.traceback_file == f"{folder}/log.txt"
    assert "Traceback" not in capfd.readouterr().err


@dataclass
class Wrong(Points):
    """Gives something else from one of its methods."""

    method: str = ""

    def __getattribute__(self, name: str) -> Any:
        wrong = name == object.__getattribute__(self, "method") and name in GIVES
        return stands_in(name) if wrong else object.__getattribute__(self, name)


def stands_in(name: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        return GIVES[name][0]

    method.__name__ = method.__qualname__ = name
    return method


GIVES: dict[str, tuple[Any, str]] = {
    "required_hooks": ([1], "must return a mapping of names to hooks, got a list"),
    "model": (len, "returns a builtin_function_or_method; expected the model"),
    "data": ([PointSet(8, False, 0)], "returns a list; expected a mapping of train"),
    "metrics": ([1.0], "returns a list; expected a mapping"),
    "meters": ({"m": 5}, "returns 5 for 'm'; expected a torchmetrics object"),
    "batch_size": (8.0, "returns 8.0; expected the number of the batch's samples"),
    "collate": (None, "returns None; expected a batch made from the samples"),
    "loader": (5, "returns 5; expected an iterable with a length"),
}


@pytest.mark.parametrize("method", GIVES)
def test_wrong_return_value_names_the_method(tmp_path: Path, method: str) -> None:
    with pytest.raises(
        UsageError,
        match=rf"{method}\(\) {re.escape(GIVES[method][1])}.*\(.*{Path(__file__).name}:\d+\)",
    ):
        run(
            described(task=f"{__name__}:Wrong", task_args={"method": method}),
            tmp_path,
            "run",
            local=True,
        )


def test_keyboard_interrupt_raised_by_the_task_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"KeyboardInterrupt.*{Path(__file__).name}:\d+"):
        run(described(task=f"{__name__}:Interrupting"), tmp_path, "run", local=True)


@dataclass
class Interrupting(Points):
    """Raises what Ctrl-C does, as it is made."""

    def __post_init__(self) -> None:
        raise KeyboardInterrupt
