"""Loading: a file, its base and overrides become one experiment, and an experiment a file or a
trial."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hooks.interval import Interval
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import load_experiment, make_experiment, to_yaml
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.asha import Asha
from orchestrator.experiment.yaml.source import ExperimentSource
from tests.orchestrator.experiment.samples import HERE, TEXT, Line, Shadow, problems


def test_file_becomes_an_experiment(file: Path) -> None:
    experiment = load_experiment(file)
    assert (experiment.name, experiment.epochs, experiment.steps, experiment.sweep) == (
        "line",
        3,
        None,
        None,
    )
    assert experiment.optimizer.arguments == {"lr": 0.1, "momentum": 0.5}
    assert experiment.validate_every == Interval(1)
    assert resolve(experiment.source).task == Line(width=2)
    assert list(experiment.hooks) == [*DEFAULT_HOOKS, "shadow"]
    assert experiment.hooks["console"] is None
    hooks = resolve(experiment.source).hooks
    assert hooks["shadow"] == Shadow(decay=0.25)
    assert "console" not in hooks


def test_key_without_a_value_has_its_default(file: Path) -> None:
    file.write_text(TEXT.split("hooks:")[0] + "hooks:\nscheduler:\n")
    experiment = load_experiment(file, ["optimizer=null"])
    assert list(experiment.hooks) == list(DEFAULT_HOOKS)
    assert (experiment.scheduler, experiment.optimizer.type) == (None, "SGD")


@pytest.mark.parametrize(
    ("override", "type_", "arguments"),
    [
        ("seed=0", "SGD", {"lr": 0.1}),
        ("optimizer.momentum=0.5", "SGD", {"lr": 0.1, "momentum": 0.5}),
        ("optimizer.type=Adam", "Adam", {}),
    ],
)
def test_override_refines_the_default_optimizer(
    file: Path, override: str, type_: str, arguments: dict[str, Any]
) -> None:
    file.write_text(f"name: x\ntask: {HERE}:Line\nepochs: 1\n")
    optimizer = load_experiment(file, [override]).optimizer
    assert (optimizer.type, optimizer.arguments) == (type_, arguments)


def test_import_paths_are_the_folder_of_the_file_and_the_current_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (file.parent / "beside_the_file.py").write_text(f"from {HERE} import Line as Beside\n")
    (elsewhere / "where_it_was_called.py").write_text(f"from {HERE} import Shadow as Here\n")
    overrides = ["task=beside_the_file:Beside", "hooks.here={type: 'where_it_was_called:Here'}"]
    experiment = load_experiment(file, overrides)
    assert experiment.import_paths == (str(file.parent), str(elsewhere))
    assert sys.path[-2:] == list(experiment.import_paths)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.lr", "0.7"),
        ("optimizer.momentum", "0.9"),
        ("scheduler", "{type: OneCycleLR, max_lr: 1}"),
        ("scheduler.gamma", "0.5"),
        ("task_args.width", "3"),
        ("hooks.shadow.decay", "0.75"),
        ("workers.cpus", "2"),
        ("workers.memory", "8 GiB"),
        ("validate_every", "5"),
    ],
)
def test_null_removes_an_optional_key(file: Path, key: str, value: str) -> None:
    file.write_text(
        f"name: x\ntask: {HERE}:Line\nepochs: 1\nhooks: {{shadow: {{type: '{HERE}:Shadow'}}}}\n"
    )
    others = ["scheduler={type: StepLR, step_size: 1}"] if key == "scheduler.gamma" else []
    assert load_experiment(file, [*others, f"{key}={value}"]) != load_experiment(file, others)
    assert load_experiment(file, [*others, f"{key}={value}", f"{key}=null"]) == load_experiment(
        file, others
    )


def test_null_is_no_value_of_a_required_key(file: Path) -> None:
    (problem,) = problems(file, TEXT, "name=null")
    assert (problem.path, problem.message) == ("name", "is missing")


def test_override_expands_the_short_form_of_a_scheduler(file: Path) -> None:
    settings = "metric: val/loss, mode: min, trials: 2, scheduler: asha"
    space = "space: {seed: {choice: [1, 2]}}"
    file.write_text(f"{TEXT}sweep: {{{settings}, {space}}}\n")
    other = file.parent / "other.yaml"
    other.write_text(f"base: {file.name}\nsweep: {{scheduler: {{grace_period: 3}}}}\n")
    for experiment in (
        load_experiment(file, ["sweep.scheduler.grace_period=3"]),
        load_experiment(other),
    ):
        assert experiment.sweep
        assert experiment.sweep.scheduler == Asha(grace_period=3)


def test_problems_of_overrides_come_in_the_order_written(file: Path) -> None:
    overrides = ["seed=x", "=", "batch_size=0", "0.1", "epochs=-1"]
    found = problems(file, TEXT, *overrides)
    assert [problem.file for problem in found] == [
        f"override '{override}'" for override in overrides
    ]


@pytest.mark.parametrize(
    ("settings", "overrides", "place"),
    [
        ("optimizer: {type: SGD, lr: 0.1}", ["optimizer.lr=-1"], "override 'optimizer.lr=-1'"),
        (
            "optimizer: {type: SGD, lr: 0.1}",
            ["optimizer.lr=-1", "optimizer.momentum=0.9"],
            "override 'optimizer.lr=-1'",
        ),
        (
            "optimizer: {type: SGD, lr: 0.1, nesterov: true}",
            ["optimizer.momentum=0.9", "optimizer.dampening=0.5"],
            "override 'optimizer.dampening=0.5'",
        ),
        (
            "hooks: {ema: {average: stochastic}}",
            ["hooks.ema.decay=0.5"],
            "override 'hooks.ema.decay=0.5'",
        ),
        ("optimizer: {type: SGD, lr: -1}", ["optimizer.momentum=0.9"], "the file"),
    ],
)
def test_refused_mapping_is_located_at_the_override_that_made_it_wrong(
    file: Path, settings: str, overrides: list[str], place: str
) -> None:
    text = f"name: x\ntask: {HERE}:Line\nepochs: 1\n{settings}\n"
    (problem,) = problems(file, text, *overrides)
    assert problem.file == (str(file) if place == "the file" else place)


def test_nan_is_refused_before_it_reaches_a_file() -> None:
    data = {"name": "line", "task": f"{HERE}:Line", "epochs": 1, "task_args": {"scale": math.nan}}

    with pytest.raises(ConfigError, match="cannot be saved as YAML: a number cannot be NaN"):
        make_experiment(data)


# There and back


def test_resolved_yaml_loads_as_an_equal_experiment(file: Path) -> None:
    overrides = [
        "hooks.band={type: '" + HERE + ":Band', low: -.inf, high: 1e-5, priority: low}",
        "hooks.shadow.tags=['on', '1e-3', '2024-01-01', '']",
        "hooks.shadow.every=100 steps",
        "hooks.perf_stats=false",
    ]
    experiment = load_experiment(file, overrides)
    again = file.parent / "again.yaml"
    again.write_text(to_yaml(experiment))
    reloaded = load_experiment(again)
    assert reloaded == experiment
    assert to_yaml(reloaded) == to_yaml(experiment)
    assert list(reloaded.hooks) == list(experiment.hooks)
    assert resolve(reloaded.source).hooks == resolve(experiment.source).hooks
    assert resolve(reloaded.source).hooks["band"].priority == 70


# A base


def test_problems_are_located_in_their_file(file: Path) -> None:
    file.write_text(TEXT.replace("0.25", "2"))
    found = problems(file.parent / "other.yaml", "base: line.yaml\nhooks:\n  shadow: {keep: x}\n")
    assert [(Path(str(p.file)).name, p.line, p.path) for p in found] == [
        ("line.yaml", 9, "hooks.shadow.decay"),
        ("other.yaml", 3, "hooks.shadow.keep"),
    ]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("nope.yaml", "nope.yaml does not exist"),
        ("[line.yaml, nope.yaml]", "nope.yaml does not exist"),
        ("5", "must be a file or a list of files, got 5"),
        ("[line.yaml, {}]", "must be a file or a list of files"),
        ("other.yaml", "must not be circular: other.yaml extends other.yaml"),
    ],
)
def test_wrong_bases_are_located(file: Path, base: str, message: str) -> None:
    (problem,) = problems(file.parent / "other.yaml", f"name: x\nbase: {base}\n")
    assert message in problem.message
    assert (problem.path, problem.line) == ("base", 2)


def test_empty_tag_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"tags\.1: must not be empty"):
        load_experiment(file, ["tags=[good, '']"])


def test_link_to_nothing_is_not_its_own_suggestion(file: Path) -> None:
    link = file.parent / "linked.yaml"
    link.symlink_to("nowhere.yaml")
    with pytest.raises(ConfigError) as caught:
        load_experiment(link)
    assert str(caught.value) == f"{link}: is a link to a file that does not exist"


def test_bases_are_merged_in_order(file: Path) -> None:
    folder = file.parent
    (folder / "parts").mkdir()
    (folder / "parts" / "fast.yaml").write_text("optimizer: {lr: 0.7}\nbatch_size: 2\n")
    (folder / "parts" / "named.yaml").write_text(
        "base: ../line.yaml\nname: from-parts\nbatch_size: 3\n"
    )
    other = folder / "other.yaml"
    other.write_text("base: [parts/named.yaml, parts/fast.yaml]\nepochs: 9\n")
    experiment = load_experiment(other)
    assert (experiment.name, experiment.batch_size, experiment.epochs) == ("from-parts", 2, 9)
    assert experiment.optimizer.arguments == {"lr": 0.7, "momentum": 0.5}
    assert experiment.import_paths[:2] == (str(folder), str(folder / "parts"))
    (folder / "parts" / "fast.yaml").write_text("batch_size: 0\n")
    ((where, line),) = {
        (Path(str(problem.file)).name, problem.line)
        for problem in problems(other, other.read_text())
    }
    assert (where, line) == ("fast.yaml", 1)


def test_circular_bases_are_reported_with_their_files(file: Path) -> None:
    folder = file.parent
    for name, base in {"a": "b", "b": "c", "c": "b"}.items():
        (folder / f"{name}.yaml").write_text(f"base: {base}.yaml\n")
    (problem,) = problems(folder / "a.yaml", (folder / "a.yaml").read_text())
    assert "must not be circular: b.yaml extends c.yaml extends b.yaml" in problem.message
    assert Path(str(problem.file)).name == "c.yaml"


def test_source_is_restored_from_its_record(file: Path) -> None:
    experiment = load_experiment(file, ["optimizer.lr=0.5"])
    restored = ExperimentSource.from_record(json.loads(json.dumps(experiment.source.record())))
    assert resolve(restored).experiment == experiment


# A trial


def trial(experiment: Experiment, values: dict[str, Any]) -> ResolvedExperiment:
    return resolve(experiment.source.without_sweep().with_values(values))


def test_trial_is_the_experiment_with_its_values(file: Path) -> None:
    experiment = load_experiment(file)
    values: dict[str, Any] = {
        "hooks.shadow.decay": np.float64(0.75),
        "task_args.width": np.int64(3),
        "hooks.perf_stats": None,
    }
    built = trial(experiment, values)
    assert built.experiment.sweep is None
    assert built.experiment.import_paths == experiment.import_paths
    assert built.hooks["shadow"] == Shadow(decay=0.75)
    assert built.task == Line(width=3)
    assert type(built.experiment.task_args["width"]) is int
    assert built.experiment.hooks["perf_stats"] is None
    assert resolve(experiment.source).hooks["shadow"] == Shadow(decay=0.25)


def test_trial_of_another_task_drops_hooks_required_by_the_first(file: Path) -> None:
    file.write_text(TEXT.replace(":Line", ":Choosy").split("hooks:")[0])
    experiment = load_experiment(file)
    assert "shadow" in experiment.hooks
    assert "shadow" not in trial(experiment, {"task": f"{HERE}:Line"}).hooks
