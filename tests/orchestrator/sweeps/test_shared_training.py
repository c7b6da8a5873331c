"""Trials that share one training are, bit for bit, those that train alone."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from ray.tune.schedulers import ASHAScheduler

from hooks import EVENTS, Hook, State
from orchestrator import open_sweep, resume_sweep, sweep
from orchestrator.checkpoint.placeholders import has_shards
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import to_yaml
from orchestrator.engines.session import Assignment, Session
from orchestrator.engines.shared_training import SharedSession
from orchestrator.loop.world import World
from orchestrator.records.new_run import create_run
from orchestrator.records.run_folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep
from tests.orchestrator.engines import test_killed
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
    task_args = {"dropout": 0.2, "batch_norm": True, "noisy": True, "test": 9, **fields.pop("task_args", {})}
    return described(**{"epochs": 3, "task_args": task_args, "sweep": settings, "hooks": hooks, **fields})


def reports(trial: Any) -> list[dict[str, Any]]:
    """Of a run or its folder."""
    kept = [
        {name: value for name, value in report.items() if not any(part in name for part in MEASURED)}
        for report in trial.reports()
    ]
    assert kept
    return kept


def stored(trial: Any, label: str) -> dict[str, Any]:
    """All tensors and numbers of a checkpoint, as text and lists."""
    store = CheckpointStore(getattr(trial, "folder", trial).checkpoints(), trial.name)
    name = store.resolve(label)
    manifest = store.manifest(name)
    whole = {
        file: store.with_shards(name, store.load(name, file)) for file in manifest["files"] if not has_shards(file)
    }
    return {"name": name, "position": manifest["position"], **plain(whole)}


def plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            key: plain(value)
            for key, value in tree.items()
            if not any(part in str(key) for part in ("remaining", "windows", "rss", "run", "peak"))
        }
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tree.tolist()
    return [plain(one) for one in tree] if isinstance(tree, list | tuple) else tree


def assert_the_same(shared: Sweep, alone: Sweep) -> None:
    assert_trials_equal(shared.runs, alone.runs)
    for one, other in zip(shared.runs, alone.runs, strict=True):
        assert [*map(sorted, one.reports())] == [*map(sorted, other.reports())], one.name
    table, expected = shared.trials, alone.trials
    assert list(table["val/accuracy"]) == list(expected["val/accuracy"])
    assert shared.best.name == alone.best.name


def assert_trials_equal(shared: Sequence[Run], alone: Sequence[Run]) -> None:
    for one, other in zip(shared, alone, strict=True):
        assert reports(one) == reports(other), one.name
        assert stored(one, "best") == stored(other, "best"), one.name
        assert stored(one, "last") == stored(other, "last"), one.name
        assert (one.status, one.folder.metadata().stopped) == (other.status, other.folder.metadata().stopped)
        columns = ["rank", "phase", "epoch", "iteration", "step", "samples", "loss"]
        assert one.load_stats(columns).equals(other.load_stats(columns)), one.name


SPACE = {
    "hooks.ema": {"choice": [{"decay": 0.5, "evaluate": "both"}, {"decay": 0.9}]},
    "hooks.early_stopping.patience": {"grid": [1, 3]},
}
STOPS = {
    "early_stopping": {"monitor": "val/loss", "mode": "min", "min_delta": 1},
    "gradient_clip": {"max_norm": 1.0},
    "optimizer_stats": {"every": "2 steps"},
}

LOOP = {"accumulate": 2, "validate_every": "4 steps"}


def test_followers_are_bit_for_bit_the_trials_alone(tmp_path: Path) -> None:
    """Some end early, the leader before others; the data, the model and accumulation draw and keep what they can."""
    shared = sweep(searching(SPACE, hooks=STOPS, **LOOP), tmp_path / "shared", local=True)
    alone = sweep(searching(SPACE, False, hooks=STOPS, **LOOP), tmp_path / "alone", local=True)
    assert len({run.reports()[-1]["epoch"] for run in alone.runs}) > 1, (
        "the case is to be one in which trials end apart"
    )
    assert_the_same(shared, alone)


def test_what_followers_share_lies_on_the_disk_once_or_is_written_by_each_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers_of_files(done: Sweep, file: str) -> list[int]:
        return [
            sum((run.checkpoint("last").parent / name / file).stat().st_ino for name in ("epoch-0001", "epoch-0002"))
            for run in done.runs
        ]

    def refuse(*paths: Any, **options: Any) -> None:
        raise PermissionError("no links here")

    experiment = searching({"hooks.ema.decay": {"grid": [0.5, 0.9, 0.99]}}, epochs=2)
    linked = sweep(experiment, tmp_path / "linked", local=True)
    monkeypatch.setattr("orchestrator.storage.storage.os.link", refuse)
    written = sweep(experiment, tmp_path / "written", local=True)
    for file, expected in {"model.pt": 1, "optimizer.pt": 1, "ema.pt": 3, "rank-0000.pt": 3}.items():
        assert len({*numbers_of_files(linked, file)}) == expected, file
        assert len({*numbers_of_files(written, file)}) == 3, file
    assert_the_same(linked, written)


@dataclass
class Shrinks(Hook):
    """Changes the weights, so that it matters whether an average is taken before or after."""

    def on_start(self, state: State) -> None:
        self.on_update(state)

    def on_update(self, state: State) -> None:
        state.module.load_state_dict({name: 0.99 * weight for name, weight in state.module.state_dict().items()})
        state.record(**{f"shrunk_{self.name}": state.step})


def written(run: Run) -> list[dict[str, Any]]:
    """The lines of json_lines, without what was measured."""
    lines = map(json.loads, Path(run.path, "scalars.jsonl").read_text().splitlines())
    return [
        {name: value for name, value in line.items() if name != "time" and not name.endswith(("_s", "_bytes"))}
        for line in lines
    ]


def known(run: Run) -> dict[str, Any]:
    """What hooks know of a run, without what was measured."""
    return {**run.folder.metadata().info, "metrics": None}


def test_followers_hooks_stand_and_see_what_they_would_alone(tmp_path: Path) -> None:
    """Among the hooks of the training, the rows and what hooks know of the run."""
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
        sweep(searching(space, share, **fields), tmp_path / str(share), local=True) for share in ("auto", False)
    )
    assert_the_same(shared, alone)
    for one, other in zip(shared.runs, alone.runs, strict=True):
        assert written(one) == written(other)
        assert known(one) == known(other)


def judged(share: Any = "auto", **settings: Any) -> Any:
    """Two learning rates, each with three decays: the low one follows the weights, the high ones stay at the first."""
    decays = {"fan_out" if share else "grid": [0.5, 0.999, 0.9999]}
    space = {"hooks.ema.decay": decays, "optimizer.lr": {"choice": [0.02, 0.2]}}
    return searching(space, share, task_args={"test": 0}, sweep={"trials": 6, **settings})


def test_a_scheduler_stops_single_followers_and_each_is_up_to_then_the_trial_alone(tmp_path: Path) -> None:
    asha = {"type": "asha", "grace_period": 1, "reduction_factor": 2}
    shared = sweep(judged(scheduler=asha), tmp_path / "shared", local=True)
    alone = sweep(judged(share=False), tmp_path / "alone", local=True)
    made = [len(run.reports()) for run in shared.runs]
    assert shared.trials["leader"].tolist() == ["trial-0000"] * 3 + ["trial-0003"] * 3
    assert {run.status for run in shared.runs} == {"stopped", "finished"}
    for one, other, count in zip(shared.runs, alone.runs, made, strict=True):
        assert dict(one.folder.metadata().values) == dict(other.folder.metadata().values)
        assert (one.status, one.folder.metadata().stopped) == (
            ("finished", []) if count == 3 else ("stopped", ["the scheduler ended the trial"])
        )
        assert reports(one) == reports(other)[:count]
        columns = ["phase", "epoch", "iteration", "loss"]
        expected = other.load_stats(columns).query(f"epoch < {count}").reset_index(drop=True)
        assert one.load_stats(columns).equals(expected), one.name
    # What Tune's own ASHA says of these reports, in the order in which they were made.
    assert made == stopped_by_tune(alone, [range(3), range(3, 6)])


def stopped_by_tune(alone: Sweep, trainings: Sequence[Sequence[int]]) -> list[int]:
    """How many reports each trial makes under Tune's ASHA, where those of a training report in turn."""
    asha = ASHAScheduler(metric="val/accuracy", mode="max", grace_period=1, reduction_factor=2, max_t=10**6)
    made = [0] * len(alone.runs)
    for training in trainings:
        under_way = {number: SimpleNamespace(trial_id=str(number)) for number in training}
        for trial in under_way.values():
            asha.on_trial_add(None, trial)
        for report in range(1, 4):
            for number, trial in [*under_way.items()]:
                made[number] += 1
                result = {
                    "training_iteration": report,
                    "val/accuracy": alone.runs[number].reports()[report - 1]["val/accuracy"],
                }
                if asha.on_trial_result(None, trial, result) == "STOP":
                    asha.on_trial_complete(None, under_way.pop(number), result)
        for number, trial in under_way.items():
            asha.on_trial_complete(
                None, trial, {"training_iteration": 3, "val/accuracy": alone.runs[number].reports()[2]["val/accuracy"]}
            )
    return made


def test_optuna_draws_the_rest_and_hears_the_best_of_its_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna = pytest.importorskip("optuna")
    told: list[Any] = []
    monkeypatch.setattr(optuna.Study, "tell", lambda self, trial, values: told.append((trial.number, values)))
    done = sweep(judged(search="optuna"), tmp_path, local=True)
    values = done.trials["val/accuracy"].tolist()
    assert told == [(0, [max(values[:3])]), (1, [max(values[3:])])]
    assert done.trials["leader"].tolist() == ["trial-0000"] * 3 + ["trial-0003"] * 3


@dataclass
class Dies(Hook):
    """Fails in the middle of an epoch, once; it hears of nothing but training."""

    died: ClassVar[bool] = False

    def on_update(self, state: State) -> None:
        if state.iteration == 10 and not Dies.died:
            Dies.died = True
            raise ConnectionError


def test_after_a_failure_they_go_on_together_from_the_newest_checkpoint_that_all_have(tmp_path: Path) -> None:
    space, hooks = (
        {"hooks.ema.decay": {"grid": [0.5, 0.9]}},
        {"dies": {"type": f"{__name__}:Dies"}, "checkpoint": {"every": "3 steps"}},
    )
    Dies.died = False
    sweep(searching(space, hooks=hooks, epochs=2), tmp_path / "shared", local=True, fail_fast=True)
    trials = open_sweep(tmp_path / "shared/points").runs
    shutil.rmtree(trials[1].checkpoint("last"))
    shared = resume_sweep(tmp_path / "shared/points", failed=True)
    assert [[attempt.checkpoint for attempt in run.folder.attempts()] for run in shared.runs] == [
        [None, "step-00000006"]
    ] * 2
    assert shared.trials["leader"].tolist() == ["trial-0000"] * 2
    assert_the_same(shared, sweep(searching(space, False, hooks=hooks, epochs=2), tmp_path / "alone", local=True))


def assignments(place: Path, strategy: str) -> list[Assignment]:
    """Two decays, with accumulation and BatchNorm, on two ranks: 14 iterations, and checkpoints after 6, 7, 11 and
    14."""
    task_args = {"dropout": 0.2, "batch_norm": True, "noisy": True}
    fields = {
        "epochs": 2,
        "batch_size": 4,
        "accumulate": 2,
        "task_args": task_args,
        "workers": {"count": 2, "strategy": strategy},
    }
    others = {
        "checkpoint": {"every": "3 steps", "best": "val/accuracy"},
        "dies": {"type": f"{test_killed.__name__}:Dies"},
    }
    experiments = [
        described(hooks={"ema": {"decay": decay, "buffers": "ema"}, **others}, **fields) for decay in (0.5, 0.9)
    ]
    folders = (create_run(place, f"trial-{number}", to_yaml(one)) for number, one in enumerate(experiments))
    return [Assignment(one.source, str(folder)) for one, folder in zip(experiments, folders, strict=True)]


def together(rank: int, world_size: int, given: Sequence[Assignment]) -> None:
    """One training to its end, or its processes'."""
    first, *followers = given
    list(
        SharedSession(
            replace(first, followers=tuple(followers)), World(rank=rank, world_size=world_size), end_hung=None
        ).reports()
    )


def all_of_two_ranks(
    rank: int, world_size: int, shared: Sequence[Sequence[Assignment]], alone: Sequence[Assignment]
) -> None:
    for given in shared:
        together(rank, world_size, given)
    for one in alone:
        list(Session(one, World(rank=rank, world_size=world_size), end_hung=None).reports())


def come_to(given: Sequence[Assignment]) -> list[Any]:
    """Rows, reports and checkpoints of runs."""
    columns = ["rank", "phase", "epoch", "iteration", "step", "loss", "seen"]
    runs = [Run(RunFolder(one.location)) for one in given]
    rows = (
        run.load_stats(columns).astype({"phase": str}).fillna(-1).sort_values(columns).values.tolist() for run in runs
    )
    return [
        (of_one, reports(run), stored(run, "best"), stored(run, "last")) for of_one, run in zip(rows, runs, strict=True)
    ]


def test_a_follower_away_from_its_leader_says_where_its_rows_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = sweep(searching({"hooks.ema.decay": {"grid": [0.5, 0.9]}}, epochs=1), tmp_path, local=True)
    moved = Run(RunFolder(shutil.copytree(shared.runs[1].path, tmp_path / "moved")))
    assert set(moved.load_stats(["phase"])["phase"]) == {"val", "test"}
    assert "they are in the folder of its leader" in caplog.text
    assert f"{tmp_path}/trial-0000" in caplog.text


def test_on_two_ranks_too_sharded_and_after_a_kill(tmp_path: Path) -> None:
    killed = assignments(tmp_path / "killed", "fsdp")
    assert -signal.SIGKILL in until_killed(
        together, 2, [replace(one, source=one.source.with_values({"hooks.dies.iteration": 13})) for one in killed]
    )
    shared, alone = (
        [assignments(tmp_path / f"{strategy}-{name}", strategy) for strategy in ("ddp", "fsdp")]
        for name in ("shared", "alone")
    )
    on_ranks(all_of_two_ranks, 2, [*shared, killed], [one for of_strategy in alone for one in of_strategy])
    for group, expected in zip([*shared, killed], [*alone, alone[1]], strict=True):
        assert come_to(group) == come_to(expected)
    attempts = [RunFolder(one.location).attempts() for one in killed]
    assert [[attempt.checkpoint for attempt in of_one] for of_one in attempts] == [[None, "step-00000006"]] * 2


def test_all_are_interrupted_where_they_stand(tmp_path: Path) -> None:
    asked = iter(range(100))
    first, second = (
        Assignment(described(hooks={"ema": {"decay": decay}}).source, f"{tmp_path}/trial-{number}")
        for number, decay in enumerate((0.5, 0.9))
    )
    session = SharedSession(
        replace(first, followers=(second,)), World(), stop_asked=lambda: next(asked) > 2, end_hung=None
    )
    made = [
        (report.member, report.metrics["iteration"], report.interrupted, report.final, report.cut_short)
        for report in session.reports()
    ]
    assert made == [(0, 4, True, True, True), (1, 4, True, True, True)]
    stores = [session.prepare() for session in session.sessions]
    assert [store.names() for store in stores] == [["step-00000004"]] * 2
    # Whichever carries the training on goes on with the means of its phase.
    own, followed = (plain(store.load("step-00000004", "rank-0000.pt")) for store in stores)
    assert own == followed


@dataclass
class Fails(Hook):
    """Observes, and fails in the trial whose average has one decay."""

    at: str = ""
    """`EVENT`, `EVENT PHASE` or `EVENT PHASE STEP`: at that event, of that phase, from that step on."""
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
    ("on_update train", 1),
    ("on_update train 8", 0),
    ("on_phase_end train", 1),
    ("on_loss val", 0),
    ("on_phase_end val 14", 1),
    ("on_save", 1),
    ("on_save train 9", 0),
    ("on_saved", 0),
    ("on_report val 14", 1),
    ("on_phase_end test", 0),
]
"""Where a trial fails, and whether it is the leader. An epoch has 7 steps, and each third step a checkpoint."""
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
def test_a_trial_that_fails_leaves_the_others_as_they_are_alone(
    at: str, place: int, unfailing: Sweep, tmp_path: Path
) -> None:
    """As the leader or a follower: reports, rows, weights, averages and what hooks remember are those of trials
    alone."""
    done = sweep(failing([*DECAYS[:place], 0.7, *DECAYS[place:]], "auto", at), tmp_path, local=True)
    runs = [*done.runs]
    failed = runs.pop(place).folder.metadata()
    assert failed.status == "failed"
    assert failed.error
    assert at in failed.error
    assert_trials_equal(runs, unfailing.runs)
