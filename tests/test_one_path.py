"""An experiment resolves to the same wherever that happens: each kind of swept path, in every
process of a run."""

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator import Experiment, load_experiment, run, sweep
from orchestrator.disk.new_run import create_run
from orchestrator.disk.reports import append_report
from orchestrator.engines.assignment import Assignment
from orchestrator.errors import ConfigError
from orchestrator.experiment import load, make_hooks, make_task, resolve
from orchestrator.experiment.load import to_dict, to_yaml
from orchestrator.experiment.read_sections import Sections
from orchestrator.experiment.sweep import check_values
from orchestrator.experiment.yaml.writer import dump_yaml
from orchestrator.loop.report import Report
from orchestrator.runs.resume import load_experiment_to_resume
from orchestrator.storage import Storage
from orchestrator.sweeps import in_process
from orchestrator.sweeps.begin_trial import make_trial_source
from orchestrator.sweeps.tune import trainable
from orchestrator.sweeps.tune.trial_data import make_tune_config
from tests.orchestrator.experiment.samples import HERE, TEXT
from tests.ranks import on_ranks
from tests.tasks import described

EXPERIMENTS = Path(__file__).parents[1] / "experiments"

FILES = {
    "line.yaml": TEXT,
    "over.yaml": (
        f"""\
base: line.yaml
name: over
task_args: {{scale: 2.0}}
optimizer: {{type: RMSprop}}
scheduler: {{type: ExponentialLR, gamma: 0.5}}
hooks:
  avg: {{type: ema, decay: 0.75}}
  band: {{type: '{HERE}:Band', low: 0, high: 1}}
changes: [{{at: 2 steps, set: {{optimizer.lr: 0.5}}}}]
"""
    ),
    "choosy.yaml": f"name: choosy\ntask: {HERE}:Choosy\nepochs: 2\n",
}

OF_ANY: Sequence[dict[str, list[Any]]] = [
    {"task": [f"{HERE}:Line", f"{HERE}:Choosy"], "task_args.width": [3]},
    {"task_args": [{"width": 5}, {"scale": 0.5}]},
    {
        "hooks.avg": [False, {"type": f"{HERE}:Shadow", "decay": 0.125}],
        "hooks.checkpoint.keep": [4],
    },
    {"hooks.shadow": [{"type": f"{HERE}:Shadow"}, {"type": f"{HERE}:Shadow", "keep": 4}]},
    {"hooks.other.type": ["ema", f"{HERE}:Shadow"], "hooks.other.decay": [0.125]},
    {
        "hooks.console": [None, {"every": 7}],
        "hooks.perf_stats": [True],
        "hooks.checkpoint.priority": ["low"],
    },
    {"optimizer": [{"type": "Adam"}, {"lr": 0.5}, None]},
    {
        "optimizer.weight_decay": [0.5],
        "scheduler.type": ["ExponentialLR"],
        "scheduler.gamma": [0.1, 0.9],
    },
    {"scheduler": [None, {"type": "StepLR", "step_size": 3}], "precision": ["bf16"]},
    {"changes": [[], [{"at": "1 epoch", "set": {"optimizer.lr": 0.5}}]], "seed": [2]},
    {"epochs": [1], "validate_every": [1, "3 steps"], "loader.drop_last": [True]},
]

OF_SOME = {
    "line.yaml": [
        {"hooks.shadow": [None, {"type": "ema"}]},
        {"optimizer.type": ["SGD", "RMSprop"]},
    ],
    "over.yaml": [
        {"optimizer.type": ["SGD", "Adam"], "optimizer.lr": [0.25]},
        {
            "hooks.avg.type": ["ema"],
            "hooks.avg.evaluate": ["raw"],
            "hooks.band.low": [-1, 5],
            "hooks.band.high": [6],
        },
    ],
    "choosy.yaml": [{"hooks.shadow.keep": [9]}, {"task": [f"{HERE}:Choosy", f"{HERE}:Line"]}],
    str(EXPERIMENTS / "mnist_moco.yaml"): [
        {"task": ["experiments.mnist_ssl:MnistMoCo", "experiments.mnist_ssl:MnistBYOL"]}
    ],
    str(EXPERIMENTS / "char_lm.yaml"): [
        {"optimizer.type": ["AdamW", "Adam"], "hooks.ema": [None, {"decay": 0.5}]}
    ],
}

CASES = [("over.yaml", axes) for axes in OF_ANY] + [
    (file, axes) for file, some in OF_SOME.items() for axes in some
]


class Case(NamedTuple):
    experiment: Experiment
    """The sweep over the axes."""
    points: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    """Each point as an experiment loaded with the point as overrides, with every default."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return [_case(folder / file, axes) for file, axes in CASES]


def _case(file: Path, axes: Mapping[str, list[Any]]) -> Case:
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    expected = [
        to_dict(
            load_experiment(file, [f"{path}={json.dumps(value)}" for path, value in point.items()])
        )
        for point in points
    ]
    return Case(load_experiment(file, [f"sweep={json.dumps(_settings(axes))}"]), points, expected)


def _settings(axes: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {
        "metric": "val/loss",
        "mode": "min",
        "search": "grid",
        "space": {path: {"grid": values} for path, values in axes.items()},
    }


class Records:
    """An engine that trains nothing, writes one report, and keeps the experiment, as resolved in
    this process and as sent to another."""

    trained: list[tuple[dict[str, Any], dict[str, Any]]] = []  # noqa: RUF012

    def __init__(self, workers: Any, **more: Any) -> None:
        self.reports = iter(())

    def begin(self, assignment: Assignment, resolved: resolve.ResolvedExperiment) -> None:
        sent = pickle.loads(pickle.dumps(assignment))
        elsewhere, *followers = (resolve.resolve(one.source) for one in (sent, *sent.followers))
        assert (elsewhere.task, elsewhere.hooks) == (resolved.task, resolved.hooks)
        self.trained.append((to_dict(resolved.experiment), to_dict(elsewhere.experiment)))
        self.trained += [
            (to_dict(follower.experiment), to_dict(follower.experiment)) for follower in followers
        ]
        metrics = {"val/loss": 0.0, "epoch": 0, "step": 1, "samples": 1}
        for trial in (assignment, *assignment.followers):
            append_report(Storage(trial.location), {"attempt": 1, "iteration": 1, **metrics})
        self.reports = iter(
            [
                Report(metrics=metrics, is_final=True, run_index=number)
                for number in range(1 + len(followers))
            ]
        )

    def next(self) -> Report | None:
        return next(self.reports, None)

    def end(self) -> None: ...


def trial_on_ray(
    told: Mapping[str, Any], number: int, values: Mapping[str, Any]
) -> trainable.Trial:
    """Return a trial as Tune creates it, in this process."""
    trial = object.__new__(trainable.Trial)
    trial._iteration = trial._time_total = 0
    trial.setup(make_tune_config(number, values), **told)
    return trial


def trial_arguments(experiment: Experiment, location: Path) -> dict[str, Any]:
    """Return what a sweep's driver passes to the process of a trial."""
    return {
        "source": experiment.source,
        "settings": experiment.sweep,
        "workers": experiment.workers,
        "location": str(location),
    }


def _train_in_trial_process(
    rank: int, world_size: int, sweeps: bytes
) -> list[list[tuple[Any, Any, Any]]]:
    trainable.ENGINES = {"gang": Records}  # type: ignore[misc, dict-item]
    found = []
    for told, points in pickle.loads(sweeps):
        Records.trained.clear()
        for number, values in enumerate(points):
            trial_on_ray(told, number, values).step()
        files = [
            Path(told["location"], f"trials/trial-{number:04d}/experiment.yaml")
            for number in range(len(points))
        ]
        found.append(
            [
                (*trained, file.read_text())
                for trained, file in zip(Records.trained, files, strict=True)
            ]
        )
    return found


def test_trial_on_ray_equals_its_values_as_overrides(cases: list[Case], tmp_path: Path) -> None:
    sweeps = [
        (trial_arguments(case.experiment, tmp_path / str(number)), case.points[-2:])
        for number, case in enumerate(cases)
    ]
    (found,) = on_ranks(_train_in_trial_process, 1, pickle.dumps(sweeps))
    for case, trials in zip(cases, found, strict=True):
        assert trials == [(one, one, dump_yaml(one)) for one in case.expected[-2:]]


def test_trial_in_this_process_equals_its_values_as_overrides(
    cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "InProcess", Records)
    for number, case in enumerate(cases):
        Records.trained.clear()
        done = sweep(case.experiment, tmp_path, str(number), local=True)
        values = [trial.folder.read_metadata().trial_settings.values for trial in done.runs]
        assert len(values) == len(case.points)
        expected = [(case.expected[case.points.index(dict(one))],) * 2 for one in values]
        assert sorted(Records.trained, key=repr) == sorted(expected, key=repr)


def test_worker_and_resumed_run_equal_the_values_as_overrides(
    cases: list[Case], tmp_path: Path
) -> None:
    for number, case in enumerate(cases):
        settings, begun = (
            case.experiment.sweep,
            create_run(
                tmp_path, f"sweep-{number}", to_yaml(case.experiment), source=case.experiment.source
            ),
        )
        assert settings is not None
        resumed = load_experiment_to_resume(begun)
        assert resumed == case.experiment
        assert resumed.source == case.experiment.source
        for place, (point, expected) in enumerate(
            zip(case.points[-1:], case.expected[-1:], strict=True)
        ):
            trial = resolve.resolve(make_trial_source(resumed.source, settings, point)).experiment
            folder = create_run(
                tmp_path, f"run-{number}-{place}", to_yaml(trial), source=trial.source
            )
            worker, resumed_run = (
                resolve.resolve(pickle.loads(pickle.dumps(trial.source))).experiment,
                load_experiment_to_resume(folder),
            )
            assert to_dict(trial) == to_dict(worker) == to_dict(resumed_run) == expected
            assert resumed_run.source == trial.source


def test_copied_experiment_resolves_to_itself(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(TEXT)
    experiment = load_experiment(tmp_path / "line.yaml")
    longer = experiment.model_copy(
        update={"epochs": 9, "workers": experiment.workers.model_copy(update={"count": 2})}
    )
    found = resolve.resolve(longer.source).experiment
    assert (found.epochs, found.workers.count, found) == (9, 2, longer)
    by_hand = Experiment(name="x", task=f"{HERE}:Line", epochs=1).model_copy(update={"epochs": 2})
    assert resolve.resolve(by_hand.source).experiment.epochs == 2


def test_experiment_made_in_python_is_checked_before_the_run_begins(tmp_path: Path) -> None:
    experiment = described(epochs=1, task_args={"train": 8, "val": 4})
    with pytest.raises(ConfigError, match=r"hooks\.ema\.decay: must be less than 1, got 2"):
        run(experiment.model_copy(update={"hooks": {"ema": {"decay": 2}}}), tmp_path, local=True)
    assert not list(tmp_path.iterdir())
    by_hand = Experiment(
        name="x", task="tests.tasks:Points", epochs=1, task_args={"train": 8, "val": 4}
    )
    assert run(by_hand, tmp_path, local=True).config == {
        **to_dict(experiment),
        "name": "x",
        **_DEFAULTS,
    }


_DEFAULTS = {"batch_size": 32, "optimizer": {"type": "SGD", "lr": 0.1}}


def test_run_without_source_resumes_from_the_resolved_experiment(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(TEXT)
    experiment = load_experiment(tmp_path / "line.yaml")
    before = create_run(tmp_path, "before", to_yaml(experiment))
    resumed = load_experiment_to_resume(before, workers=2)
    assert resumed == experiment.model_copy(
        update={"workers": experiment.workers.model_copy(update={"count": 2})}
    )


def test_edits_of_experiment_yaml_override_the_source_on_resume(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(TEXT)
    experiment = load_experiment(tmp_path / "line.yaml", ["hooks.ema={}"])
    for number, (old, new, over) in enumerate(
        [
            ("decay: 0.25", "decay: 0.5", {"hooks.shadow.decay": 0.5}),
            ("batch_size: 32", "batch_size: 8", {"batch_size": 8}),
            ("  momentum: 0.5\n", "", {"optimizer": {"type": "SGD", "lr": 0.1}}),
            ("  width: 2", "  width: 3", {"task_args.width": 3}),
        ]
    ):
        folder = create_run(
            tmp_path, str(number), to_yaml(experiment).replace(old, new), source=experiment.source
        )
        resumed = load_experiment_to_resume(folder)
        assert resumed.source == experiment.source.with_values(over)
        assert to_yaml(resumed) == to_yaml(experiment).replace(old, new)


def test_line_removed_from_experiment_yaml_is_refused_on_resume(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(TEXT)
    experiment = load_experiment(tmp_path / "line.yaml", ["seed=7"])
    text = to_yaml(experiment).replace("sweep: null\n", "").replace("max_failures: 3\n", "")
    assert (
        load_experiment_to_resume(create_run(tmp_path, "same", text, source=experiment.source))
        == experiment
    )
    text = text.replace("seed: 7\n", "")
    folder = create_run(tmp_path, "run", text, source=experiment.source)
    with pytest.raises(
        ConfigError, match=r"experiment\.yaml: seed: is missing; write a value, or null"
    ):
        load_experiment_to_resume(folder)


def test_edit_of_experiment_yaml_repairs_a_source_that_is_no_longer_valid(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(TEXT)
    experiment = load_experiment(tmp_path / "line.yaml")
    gone = experiment.source.with_values({"hooks.shadow.gone": 1})
    folder = create_run(
        tmp_path, "run", to_yaml(experiment).replace("    keep: 3", "    gone: 1"), source=gone
    )
    with pytest.raises(ConfigError, match=r"hooks\.shadow\.gone: unknown key"):
        load_experiment_to_resume(folder)
    folder.storage.write("experiment.yaml", to_yaml(experiment))
    assert load_experiment_to_resume(folder) == experiment


# Counted


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the checks of an experiment, and the constructions of its task and hooks."""
    counts: Counter[str] = Counter()
    resolve_sections, construct = resolve.resolve_sections, make_hooks.construct

    def resolving(sections: Sections) -> Any:
        counts["checks"] += 1
        return resolve_sections(sections)

    def constructing(cls: type, values: Mapping[str, Any], path: str, *more: Any) -> Any:
        counts[path.replace("task_args", "task")] += 1
        return construct(cls, values, path, *more)

    for module in (resolve, load, check_values):
        monkeypatch.setattr(module, "resolve_sections", resolving)
    for module in (make_hooks, make_task):
        monkeypatch.setattr(module, "construct", constructing)
    return counts


def five_by_five() -> Experiment:
    space = {
        "optimizer.lr": {"choice": [0.1, 0.2, 0.3, 0.4, 0.5]},
        "hooks.ema.decay": {"choice": [0.1, 0.2, 0.3, 0.4, 0.5]},
    }
    settings = {
        "metric": "val/accuracy",
        "trials": 3,
        "share_training": False,
        "space": space,
    }  # what shares a training is found by trying each value once
    return described(
        epochs=1,
        task_args={"train": 8, "val": 4},
        hooks={"ema": {}, "progress_bar": {}},
        sweep=settings,
    )


def test_trial_is_checked_once_and_builds_each_part_once(
    tmp_path: Path, counted: Counter[str]
) -> None:
    experiment = five_by_five()
    counted.clear()
    done = sweep(experiment, tmp_path, local=True)
    assert done.status == "finished"
    hooks = {f"hooks.{name}" for name in experiment.hooks}
    assert counted == dict.fromkeys(["checks", "task", *hooks], 3)


def test_each_value_of_a_fan_out_is_checked_once(counted: Counter[str]) -> None:
    space = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}}
    described(hooks={"ema": {}}, sweep={"metric": "val/accuracy", "trials": 2, "space": space})

    # The experiment, what all its trials have in common, and each of the two values.
    assert counted["checks"] == 4
