"""An experiment made in Python equals that of a file and gets the same error messages."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from hooks import EMA, Checkpoint, Hook, Interval
from orchestrator import ConfigError, Experiment, UsageError, run, sweep
from orchestrator.experiment.fields.plain_data import convert_fields
from orchestrator.experiment.load import check_experiment, make_experiment, to_dict
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.training import Change
from orchestrator.experiment.sections.workers import Workers
from orchestrator.user_code.import_folders import list_import_folders
from tests.orchestrator.experiment.samples import HERE, Choosy, Line, Shadow, Wide

FILE = {
    "name": "line",
    "task": f"{HERE}:Line",
    "task_args": {"width": 2},
    "epochs": 3,
    "optimizer": {"type": "AdamW", "lr": 0.5},
    "scheduler": {"type": "StepLR", "step_size": 2},
    "validate_every": "2 epochs",
    "workers": {"count": 2},
    "hooks": {
        "shadow": {"type": f"{HERE}:Shadow", "decay": 0.25},
        "slow": {"type": "ema", "decay": 0.5},
        "console": None,
    },
}
"""What a file says."""


def test_python_experiment_equals_the_file() -> None:
    made = Experiment(
        task=Line(width=2),
        epochs=3,
        optimizer={"type": torch.optim.AdamW, "lr": 0.5},
        scheduler={"type": torch.optim.lr_scheduler.StepLR, "step_size": 2},
        validate_every=Interval(2),
        workers=Workers(count=2),
        hooks={"shadow": Shadow(decay=0.25), "slow": EMA(decay=0.5), "console": None},
    )
    assert to_dict(check_experiment(made)) == to_dict(make_experiment(FILE))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"task": Line}, {"task": f"{HERE}:Line"}),
        ({"task": Line(width=4)}, {"task_args": {"width": 4, "scale": 1.0}}),
        ({"hooks": {"shadow": Shadow}}, {"hooks": {"shadow": {"type": f"{HERE}:Shadow"}}}),
        ({"hooks": {"task": Shadow}}, {"hooks": {"task": {"type": f"{HERE}:Shadow"}}}),
        ({"hooks": {"type": Shadow}}, {"hooks": {"type": {"type": f"{HERE}:Shadow"}}}),
        (
            {"hooks": {"task": {"type": Shadow, "keep": 2}}},
            {"hooks": {"task": {"type": f"{HERE}:Shadow", "keep": 2}}},
        ),
        (
            {"optimizers": {"type": {"type": Wide, "scheduler": torch.optim.swa_utils.SWALR}}},
            {"optimizers": {"type": {"type": f"{HERE}:Wide", "scheduler": {"type": "SWALR"}}}},
        ),
        ({"optimizer": {"type": Wide, "lr": 1}}, {"optimizer": {"type": f"{HERE}:Wide", "lr": 1}}),
        ({"scheduler": torch.optim.swa_utils.SWALR}, {"scheduler": {"type": "SWALR"}}),
        ({"optimizer": {"lr": torch.tensor(0.5)}}, {"optimizer": {"lr": 0.5}}),
        (
            {"changes": (Change(at=Interval(2), set={"optimizer.lr": 0.5}),)},
            {"changes": [{"at": "2 epochs", "set": {"optimizer.lr": 0.5}}]},
        ),
        (
            {"sweep": {"metric": "val/loss", "space": {"task": {"choice": (Line, Choosy)}}}},
            {
                "sweep": {
                    "metric": "val/loss",
                    "space": {"task": {"choice": [f"{HERE}:Line", f"{HERE}:Choosy"]}},
                }
            },
        ),
        (
            {
                "sweep": SweepSettings(
                    metric="a", mode="max", space={"hooks.ema": {"choice": [EMA(decay=0.5), None]}}
                )
            },
            {
                "sweep": {
                    "metric": "a",
                    "mode": "max",
                    "space": {"hooks.ema": {"choice": [{"type": "ema", "decay": 0.5}, None]}},
                }
            },
        ),
    ],
)
def test_classes_are_written_by_name_and_objects_by_fields(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    written = Experiment(**{"task": Line, "epochs": 1, **values}).source.written
    assert {name: written[name] for name in expected} == expected


@pytest.mark.parametrize("kind", ["choice", "grid", "fan_out"])
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("task", Choosy, f"{HERE}:Choosy"),
        ("optimizer.type", torch.optim.AdamW, "AdamW"),
        ("optimizer", torch.optim.AdamW, {"type": "AdamW"}),
        ("scheduler.0.type", torch.optim.swa_utils.SWALR, "SWALR"),
        ("hooks.shadow.type", Shadow, f"{HERE}:Shadow"),
        ("hooks.shadow", Shadow, {"type": f"{HERE}:Shadow"}),
        ("hooks.task", Shadow, {"type": f"{HERE}:Shadow"}),
        ("hooks.type", Shadow, {"type": f"{HERE}:Shadow"}),
        ("hooks.shadow", Shadow(decay=0.25), {"type": f"{HERE}:Shadow", "decay": 0.25}),
        ("hooks", {"ema": EMA(decay=0.5)}, {"ema": {"type": "ema", "decay": 0.5}}),
    ],
)
def test_swept_values_are_written_as_their_path_takes_them(
    kind: str, path: str, value: Any, expected: Any
) -> None:
    """A field that a hook leaves at its default may be swept by a path of its own."""
    settings = {
        "metric": "val/loss",
        "space": {path: {kind: [value, None]}},
        "points": [{path: value}],
        "repeats": {path: [value, None]},
    }
    written = Experiment(task=Line, epochs=1, sweep=settings).source.written["sweep"]
    assert written["space"] == {path: {kind: [expected, None]}}
    assert written["points"] == [{path: expected}]
    assert written["repeats"] == {path: [expected, None]}


def test_class_where_a_file_has_a_value_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"task_args\.norm: must be a value that YAML can hold, got <class"
    ):
        Experiment(task=f"{HERE}:Line", task_args={"norm": nn.LayerNorm}, epochs=1)


@dataclass
class Picky(Line):
    """Requires a hook as a person would write it."""

    def required_hooks(self) -> Mapping[str, Any]:
        return {"shadow": Shadow(decay=0.25, keep=7), "ema": EMA}


def test_required_hooks_may_be_objects_and_classes() -> None:
    hooks = check_experiment(Experiment(task=Picky, epochs=1, hooks={"shadow": {"keep": 1}})).hooks
    assert isinstance(hooks["shadow"], dict)
    assert (hooks["shadow"]["decay"], hooks["shadow"]["keep"]) == (0.25, 1)
    assert isinstance(hooks["ema"], dict)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"epoch": 3}, "epoch: unknown key (did you mean 'epochs'?)"),
        ({"task": "Line"}, "task: must be module:Class, such as my_module:MyTask, got 'Line'"),
        (
            {"task": EMA},
            "task: must be a task, its class, or 'module:Class', got <class 'hooks.training.ema.EMA'>",
        ),
        (
            {"task": Line(), "task_args": {"width": 3}},
            "task_args: has no effect with a task instance",
        ),
        ({"hooks": {"ema": EMA(decay=1.2)}}, "hooks.ema.decay: must be less than 1, got 1.2"),
        (
            {"hooks": {"mine": nn.ReLU()}},
            "hooks.mine: must be a class or a value that YAML can hold, got ReLU()",
        ),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, "optimizer: must be a class or a value"),
        ({"optimizer": nn.ReLU}, r"optimizer.type: must be a subclass of"),
        (
            {
                "sweep": {
                    "metric": "a",
                    "mode": "max",
                    "space": {"hooks.ema.dekay": {"choice": [0.5]}},
                }
            },
            "sweep.space.hooks.ema.dekay: unknown key",
        ),
    ],
)
def test_problems_are_worded_as_for_a_file(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_experiment(Experiment(**{"task": Line, "epochs": 1, **values}))
    assert problem in str(caught.value)


def test_all_unwritable_values_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment(
            task=Line,
            epochs=1,
            hooks={"one": object},
            optimizer={"lr": nn.ReLU(), "betas": (0.9, nn.ReLU())},
        )
    assert [problem.path for problem in caught.value.problems] == [
        "optimizer.lr",
        "optimizer.betas.1",
    ]


def test_name_defaults_to_that_of_the_task() -> None:
    assert Experiment(task=Choosy, epochs=1).name == "choosy"
    assert Experiment(task="study.wine:WineByHand2", epochs=1).name == "wine_by_hand2"
    assert Experiment(task=Line, name="mine", epochs=1).name == "mine"
    unnamed = Experiment(task=Choosy, name=None, epochs=1)
    assert unnamed.name == "choosy"
    renamed = Experiment(task=Line, name="mine", epochs=1).model_copy(update={"name": None})
    assert check_experiment(renamed).name == "line"
    assert unnamed.model_copy(update={"name": None, "task": Line}).name == "line"


def test_copy_without_a_task_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^task: is missing"):
        Experiment(task=Line, epochs=1).model_copy(update={"task": None})


def test_classes_are_imported_from_the_folder_that_was_current_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the module is used once, so that no other test has imported it."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "beside_the_first.py").write_text(
        "from tests.tasks import Points\n\nclass Beside(Points):\n    pass\n"
    )
    monkeypatch.chdir(first)
    experiment = Experiment(task="beside_the_first:Beside", epochs=1)
    copy = experiment.model_copy(update={"epochs": 2})

    monkeypatch.chdir(second)
    assert experiment.import_paths == copy.import_paths == (str(first),)
    assert check_experiment(copy).epochs == 2


class Loose(Hook):
    def __init__(self, depth: int) -> None:
        self.depth = depth


@dataclass
class Callback(Line):
    """Has fields whose defaults no file can say."""

    then: Any = field(default_factory=lambda: print)
    norm: Any = nn.LayerNorm


def test_objects_that_cannot_be_rebuilt_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hooks\.loose: is a Loose, which is not a dataclass"):
        Experiment(task=Line, epochs=1, hooks={"loose": Loose(3)})
    with pytest.raises(
        ConfigError, match=r"task_args\.then: cannot be saved as YAML, got <built-in function sum>"
    ):
        Experiment(task=Callback(then=sum), epochs=1)
    assert convert_fields(Callback(then=1), "") == {"width": 1, "scale": 1.0, "then": 1}
    assert convert_fields(Callback(), "") == {"width": 1, "scale": 1.0}


def test_classes_that_cannot_be_imported_are_refused() -> None:
    @dataclass
    class Hidden(Line):
        pass

    with pytest.raises(
        ConfigError, match=r"task: .*<locals>\.Hidden is defined within a function or a class"
    ):
        Experiment(task=Hidden, epochs=1)
    old = type("Line", (Line,), {"__module__": HERE, "__qualname__": "Line"})
    with pytest.raises(ConfigError, match=rf"task: is an older Line than '{HERE}:Line'"):
        Experiment(task=old, epochs=1)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> type[Line]:
    """A task that a script or a notebook defines."""
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(
        "from dataclasses import dataclass\n"
        "from tests.orchestrator.experiment.samples import Line\n"
        "@dataclass\n"
        "class Cell(Line):\n"
        "    depth: int = 1\n",
        vars(cell),
    )
    made: type[Line] = vars(cell)["Cell"]
    return made


def test_task_of_a_notebook_can_be_run_in_its_process(main: type[Line], tmp_path: Path) -> None:
    experiment = Experiment(task=main(width=2), epochs=1)
    done = run(experiment, tmp_path, local=True)
    assert done.config["task_args"] == {"width": 2, "scale": 1.0, "depth": 1}


def test_model_copy_accepts_classes_and_objects() -> None:
    made = Experiment(task=Line, epochs=1).model_copy(
        update={"hooks": {"checkpoint": Checkpoint(keep=7)}, "epochs": None, "steps": 5}
    )
    entry = check_experiment(made).hooks["checkpoint"]
    assert isinstance(entry, dict)
    assert (entry["keep"], made.steps) == (7, 5)
    with pytest.raises(ConfigError, match="steps: cannot be combined with epochs"):
        made.model_copy(update={"epochs": 5})


def test_only_experiments_can_be_run(tmp_path: Path) -> None:
    wrong: Mapping[str, Any] = {"task": Line, "epochs": 1}
    for begin in (run, sweep):
        with pytest.raises(
            UsageError, match=r"must be an Experiment, such as load_experiment\(FILE\), got dict"
        ):
            begin(wrong, tmp_path, local=True)  # type: ignore[operator]


def test_import_folders_are_those_of_the_named_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import pack.inner  # type: ignore[import-not-found]  # noqa: F401

    assert list_import_folders(
        {"a": ["pack.inner:Thing", "pack:Thing"], "b": "torch.nn:ReLU", "c": "not.there:Thing"}
    ) == [tmp_path]
