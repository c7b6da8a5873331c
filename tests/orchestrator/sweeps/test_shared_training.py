"""Trials that share one training are bit for bit those that train alone."""

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

from hooks import EVENTS, Hook, State
from orchestrator import open_sweep, resume_sweep, sweep
from orchestrator.cli import app
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.contents import fill_shards
from orchestrator.disk.checkpoints.placeholders import has_shards
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_file import RunFile
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.errors import StorageError
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep
from tests.orchestrator.engines import test_killed
from tests.orchestrator.loop import test_evaluation
from tests.ranks import on_ranks, until_killed
from tests.tasks import described

MEASURED = ("time", "attempt", "_per_s", "iteration_s", "_bytes")


def searching(space: dict[str, Any], share: Any = "auto", **fields: Any) -> Any:
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "search": "grid",
        "space": space,
        "share_training": share,
        **fields.pop("sweep", {}),
    }
    hooks = {"ema": {}, "checkpoint": {"best": "val/accuracy"}, **fields.pop("hooks", {})}
    task_args = {
        "dropout": 0.2,
        "batch_norm": True,
        "noisy": True,
        "test": 9,
        **fields.pop("task_args", {}),
    }
    return described(
        **{"epochs": 3, "task_args": task_args, "sweep": settings, "hooks": hooks, **fields}
    )


def reports(trial: Any) -> list[dict[str, Any]]:
    """Return the reports of a run or its folder without measurements."""
    lines = [
        {
            name: value
            for name, value in report.items()
            if not any(part in name for part in MEASURED)
        }
        for report in trial.reports()
    ]
    assert lines
    return lines


def stored(trial: Any, label: str) -> dict[str, Any]:
    """Return all tensors and numbers of a checkpoint, as text and lists."""
    store = CheckpointStore(find_checkpoint_folder(getattr(trial, "folder", trial)), trial.name)
    name = store.resolve(label)
    manifest = store.read_manifest(name)
    whole = {
        file: fill_shards(store, name, store.load(name, file))
        for file in manifest["files"]
        if not has_shards(file)
    }
    return {"name": name, "position": manifest["position"], **plain(whole)}


def plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            key: plain(value)
            for key, value in tree.items()
            if not any(
                part in str(key)
                for part in ("remaining", "windows", "rss", "run", "phases", "perf_stats")
            )
        }
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tree.tolist()
    return [plain(one) for one in tree] if isinstance(tree, list | tuple) else tree


def assert_the_same(shared: Sweep, alone: Sweep) -> None:
    assert_trials_equal(shared.runs, alone.runs)
    for one, other in zip(shared.runs, alone.runs, strict=True):
        assert [*map(sorted, one.reports())] == [*map(sorted, other.reports())], one.name
    table = shared.trials
    expected = alone.trials
    assert list(table["val/accuracy"]) == list(expected["val/accuracy"])
    assert shared.best.name == alone.best.name


def assert_trials_equal(shared: Sequence[Run], alone: Sequence[Run]) -> None:
    for one, other in zip(shared, alone, strict=True):
        assert reports(one) == reports(other), one.name
        assert stored(one, "best") == stored(other, "best"), one.name
        assert stored(one, "last") == stored(other, "last"), one.name
        assert (one.status, one.folder.read_metadata().stopped) == (
            other.status,
            other.folder.read_metadata().stopped,
        )
        columns = ["rank", "phase", "epoch", "iteration", "step", "samples", "loss"]
        assert one.load_stats(columns).equals(other.load_stats(columns)), one.name


SPACE = {
    "hooks.ema": {
        "choice": [{"decay": 0.5, "evaluate": "both"}, {"decay": 0.9, "evaluate": "raw"}]
    },
    "hooks.early_stopping.patience": {"grid": [1, 3]},
}
STOPS = {
    "early_stopping": {"monitor": "val/loss", "mode": "min", "min_delta": 1},
    "gradient_clip": {"max_norm": 1.0},
    "optimizer_stats": {"every": "2 steps"},
}

LOOP = {"accumulate": 2, "validate_every": "4 steps", "task": f"{test_evaluation.__name__}:Drawing"}


def test_followers_train_bit_for_bit_as_alone(tmp_path: Path) -> None:
    """Some end early, the leader before others.

    Data, model and validation draw random numbers; the model and accumulation have state.
    """
    shared = sweep(searching(SPACE, hooks=STOPS, **LOOP), tmp_path / "shared", local=True)
    alone = sweep(searching(SPACE, False, hooks=STOPS, **LOOP), tmp_path / "alone", local=True)
    assert len({run.reports()[-1]["epoch"] for run in alone.runs}) > 1, (
        "trials end at different epochs"
    )
    assert_the_same(shared, alone)
    test_evaluation.assert_measured_again(shared.runs[1])


def test_followers_link_common_files_or_copy_them_where_links_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inodes(done: Sweep, file: str) -> list[int]:
        return [
            sum(
                (run.checkpoint("last").parent / name / file).stat().st_ino
                for name in ("epoch-0001", "epoch-0002")
            )
            for run in done.runs
        ]

    def refuse(*paths: Any, **options: Any) -> None:
        raise PermissionError("no links here")

    experiment = searching({"hooks.ema.decay": {"grid": [0.5, 0.9]}}, epochs=2)
    linked = sweep(experiment, tmp_path / "linked", local=True)
    monkeypatch.setattr("orchestrator.storage.local_files.os.link", refuse)
    written = sweep(experiment, tmp_path / "written", local=True)
    for file, expected in {
        "model.pt": 1,
        "optimizer.pt": 1,
        "ema.pt": 2,
        "rank-0000.pt": 2,
    }.items():
        assert len({*inodes(linked, file)}) == expected, file
        assert len({*inodes(written, file)}) == 2, file
    assert_the_same(linked, written)


@dataclass
class Shrinks(Hook):
    """Changes the weights, so that an average before and after the hook differs."""

    def on_start(self, state: State) -> None:
        self.on_update(state)

    def on_update(self, state: State) -> None:
        state.module.load_state_dict(
            {name: 0.99 * weight for name, weight in state.module.state_dict().items()}
        )
        state.record(**{f"shrunk_{self.name}": state.step})


def written(run: Run) -> list[dict[str, Any]]:
    """Return the lines of json_lines without measurements."""
    lines = map(json.loads, Path(run.path, "scalars.jsonl").read_text().splitlines())
    return [
        {
            name: value
            for name, value in line.items()
            if name != "time" and not name.endswith(("_s", "_bytes"))
        }
        for line in lines
    ]


def known(run: Run) -> dict[str, Any]:
    """Return the notes of hooks without measurements."""
    return {**run.folder.read_metadata().info, "metrics": None}


def test_hooks_of_followers_have_the_order_rows_and_notes_as_alone(tmp_path: Path) -> None:
    shrinks = {"type": f"{__name__}:Shrinks"}
    hooks = {
        "before": shrinks,
        "ema": {"decay": 0.5},
        "json_lines": {"every": 2, "priority": "NORMAL", "window": "global"},
        "after": shrinks,
    }
    hooks |= {
        "checkpoint": {},
        "row_stats": {"report": ["loss/mean"]},
        "model_complexity": {},
        "activation_stats": {"every": "2 steps"},
    }
    space = {"hooks.runtime_info": {"choice": [{}, None]}}
    fields = {"epochs": 2, "hooks": hooks, "task_args": {"batch_norm": False}}
    shared, alone = (
        sweep(searching(space, share, **fields), tmp_path / str(share), local=True)
        for share in ("auto", False)
    )
    assert_the_same(shared, alone)
    for one, other in zip(shared.runs, alone.runs, strict=True):
        assert written(one) == written(other)
        assert known(one) == known(other)


def two_rates(share: Any = "auto", **settings: Any) -> Any:
    """Two learning rates, each with three decays; the high ones stay close to the initial
    weights."""
    decays = {"fan_out" if share else "grid": [0.5, 0.999, 0.9999]}
    space = {"hooks.ema.decay": decays, "optimizer.lr": {"choice": [0.02, 0.2]}}
    return searching(space, share, task_args={"test": 0}, sweep={"trials": 6, **settings})


def test_scheduler_stops_single_followers(tmp_path: Path) -> None:
    asha = {"type": "asha", "grace_period": 1, "reduction_factor": 2}
    shared = sweep(two_rates(scheduler=asha), tmp_path / "shared", local=True)
    alone = sweep(two_rates(share=False), tmp_path / "alone", local=True)
    made = [len(run.reports()) for run in shared.runs]
    assert shared.trials["leader"].tolist() == ["trial-0000"] * 3 + ["trial-0003"] * 3
    assert {run.status for run in shared.runs} == {"stopped", "finished"}
    for one, other, count in zip(shared.runs, alone.runs, made, strict=True):
        assert dict(one.folder.read_metadata().trial_settings.values) == dict(
            other.folder.read_metadata().trial_settings.values
        )
        assert (one.status, one.folder.read_metadata().stopped) == (
            ("finished", [])
            if count == 3
            else ("stopped", [f"asha ended the trial after report {count}"])
        )
        assert reports(one) == reports(other)[:count]
        columns = ["phase", "epoch", "iteration", "loss"]
        expected = other.load_stats(columns).query(f"epoch < {count}").reset_index(drop=True)
        assert one.load_stats(columns).equals(expected), one.name
    rows = shared.load_stats(columns=["step_s"], where="phase = 'train'").groupby(
        "trial", observed=True
    )["step_s"]
    groups = rows.size().groupby(shared.trials["leader"])
    saved = sum(rows.mean()[leader] * (sizes.sum() - sizes.max()) for leader, sizes in groups)
    shown = json.loads(CliRunner().invoke(app, ["show", str(shared.path), "--json"]).stdout)[
        "shared_training"
    ]
    assert shown == {"followers": 4, "trials": 6, "saved_s": pytest.approx(saved)}


@dataclass
class Dies(Hook):
    """Fails in the middle of an epoch, once."""

    died: ClassVar[bool] = False

    def on_update(self, state: State) -> None:
        if state.iteration == 10 and not Dies.died:
            Dies.died = True
            raise ConnectionError


def test_after_a_failure_all_resume_from_the_newest_common_checkpoint(tmp_path: Path) -> None:
    space = {"hooks.ema.decay": {"grid": [0.5, 0.9]}}
    hooks = {"dies": {"type": f"{__name__}:Dies"}, "checkpoint": {"every": "3 steps"}}
    Dies.died = False
    sweep(searching(space, hooks=hooks, epochs=2), tmp_path / "shared", local=True, fail_fast=True)
    trials = open_sweep(tmp_path / "shared/points").runs
    shutil.rmtree(trials[1].checkpoint("last"))
    shared = resume_sweep(tmp_path / "shared/points", failed=True)
    assert [
        [attempt.checkpoint for attempt in run.folder.read_attempts()] for run in shared.runs
    ] == [[None, "step-00000006"]] * 2
    assert shared.trials["leader"].tolist() == ["trial-0000"] * 2
    assert_the_same(
        shared,
        sweep(searching(space, False, hooks=hooks, epochs=2), tmp_path / "alone", local=True),
    )


def assignments(location: Path, strategy: str) -> list[Assignment]:
    """Two decays, with accumulation and BatchNorm, on two ranks.

    The 14 iterations have checkpoints after 6, 7, 11 and 14.
    """
    hooks = {
        "checkpoint": {"every": "3 steps", "best": "val/accuracy"},
        "dies": {"type": f"{test_killed.__name__}:Dies"},
    }
    fields = {
        "epochs": 2,
        "batch_size": 4,
        "accumulate": 2,
        "task_args": {"dropout": 0.2, "batch_norm": True, "noisy": True},
        "workers": {"count": 2, "strategy": strategy},
    }
    created = []
    for number, decay in enumerate((0.5, 0.9)):
        experiment = described(hooks={"ema": {"decay": decay, "buffers": "ema"}, **hooks}, **fields)
        folder = create_run(location, f"trial-{number}", to_yaml(experiment))
        created.append(Assignment(experiment.source, str(folder)))
    return created


def train_together(rank: int, world_size: int, group: Sequence[Assignment]) -> None:
    leader, *followers = group
    world = World(rank=rank, world_size=world_size)
    for _ in Session(replace(leader, followers=tuple(followers)), world, end_hung=None).reports():
        pass


def train_all(
    rank: int,
    world_size: int,
    shared: Sequence[Sequence[Assignment]],
    alone: Sequence[Sequence[Assignment]],
) -> None:
    for group in shared:
        train_together(rank, world_size, group)
    for assignment in (assignment for group in alone for assignment in group):
        for _ in Session(
            assignment, World(rank=rank, world_size=world_size), end_hung=None
        ).reports():
            pass


def contents(group: Sequence[Assignment]) -> list[Any]:
    """Return rows, reports and checkpoints of runs."""
    columns = ["rank", "phase", "epoch", "iteration", "step", "loss", "seen"]
    runs = [Run(RunFolder(assignment.location)) for assignment in group]
    tables = [
        run.load_stats(columns).astype({"phase": str}).fillna(-1).sort_values(columns)
        for run in runs
    ]
    rows = [table.to_numpy().tolist() for table in tables]
    return [
        (own, reports(run), stored(run, "best"), stored(run, "last"))
        for own, run in zip(rows, runs, strict=True)
    ]


def test_a_follower_s_run_names_the_leader_s_folder_when_moved_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = sweep(
        searching({"hooks.ema.decay": {"grid": [0.5, 0.9]}}, epochs=1), tmp_path, local=True
    )
    moved = Run(RunFolder(shutil.copytree(shared.runs[1].path, tmp_path / "moved")))
    assert set(moved.load_stats(["phase"])["phase"]) == {"val", "test"}
    assert "they are in the folder of its leader" in caplog.text
    assert f"{tmp_path}/trial-0000" in caplog.text


def test_two_ranks_share_a_training_with_shards_and_after_a_kill(tmp_path: Path) -> None:
    killed = assignments(tmp_path / "killed", "fsdp")
    kills = [
        replace(one, source=one.source.with_values({"hooks.dies.iteration": 13})) for one in killed
    ]
    assert -signal.SIGKILL in until_killed(train_together, 2, kills)
    shared = assignments(tmp_path / "shared", "ddp")
    alone = [assignments(tmp_path / strategy, strategy) for strategy in ("ddp", "fsdp")]
    on_ranks(train_all, 2, [shared, killed], alone)
    for group, expected in zip([shared, killed], alone, strict=True):
        assert contents(group) == contents(expected)
    for assignment in killed:
        attempts = RunFolder(assignment.location).read_attempts()
        assert [attempt.checkpoint for attempt in attempts] == [None, "step-00000006"]


def test_an_interruption_saves_all_trials_at_the_same_step(tmp_path: Path) -> None:
    calls = iter(range(100))
    first, second = (
        Assignment(described(hooks={"ema": {"decay": decay}}).source, f"{tmp_path}/trial-{number}")
        for number, decay in enumerate((0.5, 0.9))
    )
    session = Session(
        replace(first, followers=(second,)),
        World(),
        stop_requested=lambda: next(calls) > 2,
        end_hung=None,
    )
    made = [
        (
            report.run_index,
            report.metrics["iteration"],
            report.interrupted,
            report.is_final,
            report.is_partial,
        )
        for report in session.reports()
    ]
    assert made == [(0, 4, True, True, True), (1, 4, True, True, True)]
    stores = [AssignedRun(assignment, World(), None).store for assignment in (first, second)]
    assert [store.list_names() for store in stores] == [["step-00000004"]] * 2
    # Either trial can lead the resumed training, with the means of the phase.
    own, followed = (plain(store.load("step-00000004", "rank-0000.pt")) for store in stores)
    assert own == followed


@dataclass
class Fails(Hook):
    """Observes, and fails in the trial with this decay."""

    at: str = ""
    """`EVENT`, `EVENT PHASE` or `EVENT PHASE STEP`: at that event, of that phase, from that step
    on."""
    decay: float = 0.7
    observes: ClassVar[bool] = True


def _failing(event: str) -> Callable[..., None]:
    def fail(self: Fails, state: State, *arguments: Any) -> None:
        wanted, phase, step = [*self.at.split(), "", "", ""][:3]
        if event != wanted or state.config["hooks"]["ema"]["decay"] != self.decay:
            return
        if phase in ("", state.phase) and state.step >= int(step or 0):
            raise TypeError(self.at)

    return fail


for _event in EVENTS:
    setattr(Fails, _event, _failing(_event))

FAILURES = [
    ("on_start", 0),
    ("on_update train 8", 0),
    ("on_loss val", 0),
    ("on_report val 14", 1),
    ("on_end", 1),
]
"""Where a trial fails, and its number (0 is the leader). An epoch has 7 steps, and each third step
a checkpoint."""
DECAYS = [0.5, 0.9]


def failing(decays: Sequence[float], share: Any, at: str) -> Any:
    hooks = {
        "ema": {"evaluate": "both", "buffers": "ema"},
        "checkpoint": {"every": "3 steps", "best": "val/accuracy"},
        "early_stopping": {"monitor": "val/loss", "patience": 3},
        "fails": {"type": f"{__name__}:Fails", "at": at},
    }
    return searching({"hooks.ema.decay": {"grid": [*decays]}}, share, epochs=2, hooks=hooks)


@pytest.fixture(scope="module")
def unfailing(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Two trials alone, neither of which fails."""
    return sweep(failing(DECAYS, False, ""), tmp_path_factory.mktemp("alone"), local=True)


@pytest.mark.parametrize(("at", "place"), FAILURES)
def test_failed_trial_does_not_change_the_others(
    at: str, place: int, unfailing: Sweep, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    done = sweep(failing([*DECAYS[:place], 0.7, *DECAYS[place:]], "auto", at), tmp_path, local=True)
    runs = [*done.runs]
    failed = runs.pop(place).folder.read_metadata()
    assert failed.status == "failed"
    assert failed.error
    assert at in failed.error
    assert not [warning for warning in recwarn if warning.category is ResourceWarning], (
        "files are closed"
    )
    assert_trials_equal(runs, unfailing.runs)


def test_fail_fast_ends_the_others_though_training_could_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first trial cannot be recorded, which leaves the second one to train."""
    end = RunFile.end

    def refuse(file: RunFile, status: Any, **fields: Any) -> None:
        if file.read().name == "trial-0000" and status != "failed":
            raise StorageError("the bucket does not answer")
        end(file, status, **fields)

    monkeypatch.setattr(RunFile, "end", refuse)
    stops = {"early_stopping": {"monitor": "val/loss", "mode": "min", "min_delta": 1}}
    space = {"hooks.early_stopping.patience": {"grid": [1, 9]}}
    experiment = searching(space, hooks=stops, epochs=4)
    done = sweep(experiment, tmp_path, local=True, fail_fast=True)
    assert done.trials["status"].tolist() == ["failed", "interrupted"]
    assert done.trials["stopped"].tolist()[1] == "trial-0000 failed, which ends the sweep"
    assert len(done.runs[1].reports()) < 4
