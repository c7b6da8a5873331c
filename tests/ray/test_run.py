"""Runs on Ray: their tables, killed ranks and drivers, interrupts and failures."""

import re
import signal
import sys
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator import Experiment, RunError, load_experiment, open_run, resume, run
from orchestrator.disk.metadata import EngineName
from orchestrator.runs.result import Run
from tests.driver import Driver
from tests.ray.conftest import EXPERIMENT, HOOKS, TASK, WHOAMI, address_of
from tests.test_own_folders import hookyard, study_in

pytestmark = pytest.mark.ray

KEY = ["rank", "phase", "epoch", "iteration"]


def weights(run: Run) -> dict[str, Any]:
    """The final model and its averaged copy."""
    folder = Path(run.checkpoint("last"))
    model = torch.load(folder / "model.pt", weights_only=True)
    ema = torch.load(folder / "ema.pt", weights_only=True)["model"]
    return {**model, **{f"ema.{name}": value for name, value in ema.items()}}


def assert_same_weights(one: Run, other: Run) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def assert_each_row_once(run: Run) -> None:
    # 80 training samples over 2 ranks in batches of 8 are 5 iterations an epoch; 41 for val are 21
    # and 20: 3 each.
    stats = run.stats
    assert not stats.duplicated(KEY).any()
    for rank in (0, 1):
        mine = stats[stats["rank"] == rank]
        assert mine[mine["phase"] == "train"]["iteration"].tolist() == list(range(1, 16))
        assert (
            mine[mine["phase"] == "val"].groupby("epoch")["iteration"].apply(list).tolist()
            == [[1, 2, 3]] * 3
        )
    assert run.metrics["epoch"].tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def undisturbed(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without any accident."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, text in {"circle.py": TASK, "mishaps.py": HOOKS, "points.yaml": EXPERIMENT}.items():
        (folder / name).write_text(text)
    return run(load_experiment(folder / "points.yaml"), folder / "runs")


def test_every_rank_reaches_the_table(undisturbed: Run) -> None:
    assert undisturbed.status == "finished"
    assert_each_row_once(undisturbed)
    assert undisturbed.stats.columns[:6].tolist() == [
        "rank",
        "node",
        "phase",
        "epoch",
        "iteration",
        "step",
    ]
    samples = undisturbed.stats.query("phase == 'val'").groupby("epoch")["batch_size"].sum()
    assert samples.tolist() == [41, 41, 41]
    assert undisturbed.summary("rank").index.tolist() == [0, 1]
    assert {"ema", "checkpoint", "(loop)"} <= set(
        undisturbed.summary("hook").index.get_level_values("hook")
    )


def test_a_gang_predicts_each_sample_once(undisturbed: Run) -> None:
    """41 samples are 21 of rank 0 and 20 of rank 1, in the order of the dataset."""
    predicted = undisturbed.predict(engine="gang")
    frame = predicted.load()
    assert frame.index.tolist() == list(range(41))
    files = sorted(path.name for path in Path(predicted.path).iterdir())
    assert files == ["part-000000000000.parquet", "part-000000000021.parquet"]

    points = torch.randn(121, 2, generator=torch.Generator().manual_seed(1))[80:]
    with torch.no_grad():
        expected = undisturbed.load("best")(points)
    outputs = torch.from_numpy(np.stack(frame["output"].to_list()))
    torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize(
    ("engine", "kills", "spares"), [("train", {1: 7}, 0), ("gang", {0: 7, 1: 9}, 1)]
)
def test_killed_ranks_and_a_killed_driver_change_no_result(
    ray_cluster: Any,
    outside: Path,
    undisturbed: Run,
    engine: str,
    kills: dict[int, int],
    spares: int,
) -> None:
    """Ranks are killed first, each at a step, then the driver; Ray is there already, and stays."""
    (outside / "whoami.py").write_text(WHOAMI)
    ranks = [
        f"hooks.rank{rank}={{type: 'mishaps:Accident', step: {step}, rank: {rank}, once: {outside / f'rank-{rank}'}}}"
        for rank, step in kills.items()
    ]
    driver = f"hooks.driver={{type: 'mishaps:Accident', step: 13, whom: driver, rank: 0, once: {outside / 'driver'}}}"
    settings = [
        f"workers.spares={spares}",
        "hooks.process={type: 'whoami:Process'}",
        *ranks,
        driver,
    ]
    flags = [*address_of(ray_cluster), "--engine", engine, "--skip-preflight"]
    code, stderr = Driver("run", *flags, "points.yaml", *settings).wait()
    assert code == -signal.SIGKILL, stderr
    for rank in kills:
        assert re.search(rf"Rank {rank} on \S+ failed: ", stderr)
        if engine == "gang":
            by_spare = " (1 from spares)" if spares else ""
            assert f"replaced the process of rank {rank}{by_spare}; kept 1 of 2" in stderr
    assert status_of("runs/points") == "lost"
    resumed = resume("runs/points")
    assert resumed.status == "finished"
    checkpoints = [None, *(f"step-{step - 1:08}" for step in kills.values()), "step-00000012"]
    assert [attempt.checkpoint for attempt in resumed.folder.read_attempts()] == checkpoints
    assert resumed.folder.read_metadata().engine == engine
    assert_each_row_once(resumed)
    assert_same_weights(resumed, undisturbed)
    assert resumed.metrics["val/loss"].tolist() == undisturbed.metrics["val/loss"].tolist()
    if (
        engine == "gang"
    ):  # the steps after the first loss, in which only the second lost rank keeps its process
        pids = (
            resumed.stats.query("phase == 'train'")
            .groupby(["rank", "attempt"])["pid"]
            .unique()
            .map(list)
        )
        first, second = kills
        assert pids[second, 0] == pids[second, 1]
        assert pids[first, 0] != pids[first, 1] == pids[first, 2]
        assert pids[second, 1] != pids[second, 2]


def status_of(path: str) -> str:
    return open_run(path).status


@pytest.mark.parametrize(("engine", "number"), [("train", signal.SIGINT), ("gang", signal.SIGTERM)])
def test_first_interrupt_saves_and_prints_the_resume_command(
    ray_cluster: Any, outside: Path, engine: str, number: int
) -> None:
    """A Ray that the run starts sets its own handler of SIGTERM, and must outlive the signal."""
    flags = address_of(ray_cluster) if number == signal.SIGINT else []
    driver = Driver(
        *("run", *flags, "--engine", engine),
        *("points.yaml", "epochs=100000", "hooks.console.every=1"),
        has_own_group=True,
    )
    output = list(takewhile(lambda line: "epoch 1" not in line, driver.stderr))
    driver.send_signal_to_group(number)
    code, rest = driver.wait()
    assert code == 130, "".join(output) + rest
    assert ("preflight: 1 node passed" if flags else "starting Ray on this machine") in "".join(
        output
    )
    assert f"hookyard resume {Path('runs/points').absolute()}" in rest
    assert status_of("runs/points") == "interrupted"
    assert open_run("runs/points").checkpoint("last")


@pytest.mark.parametrize("engine", ["train", "gang"])
def test_failing_hook_ends_the_run_with_what_it_printed_and_its_own_message(
    ray_cluster: Any, outside: Path, engine: EngineName
) -> None:
    fails = "hooks.fails={type: 'mishaps:Fails', value: 2}"
    with pytest.raises(
        RunError, match=r"hook 'fails' failed in on_update: ValueError: 2\.0 is too much"
    ):
        run(load_experiment("points.yaml", [fails, "workers.count=1"]), "runs", engine=engine)
    assert status_of("runs/points") == "failed"
    assert len(open_run("runs/points").folder.read_attempts()) == 1
    assert Path("runs/points/log.txt").read_text().count("about to fail with 2.0\n") == 1


def test_engines_train_one_rank_bit_for_bit_alike(ray_cluster: Any, outside: Path) -> None:
    text = (outside / "points.yaml").read_text()
    text = text.replace("batch_size: 8", "batch_size: 80").replace("{count: 2}", "{cpus: 2}")
    (outside / "points.yaml").write_text(text + "task_args: {width: 400}\n")
    load = partial(load_experiment, "points.yaml")
    runs = [run(load(), "runs", "local", local=True)]
    runs += [run(load(), "runs", engine, engine=engine) for engine in ("gang", "train")]
    assert [
        attempt.hosts[0].threads for done in runs for attempt in done.folder.read_attempts()
    ] == [2, 2, 2]
    for done in runs[1:]:
        assert_same_weights(runs[0], done)


CELL = """
from dataclasses import dataclass
from typing import Any
from hooks import Hook, State
from tests.tasks import Points

@dataclass
class Cell(Points):
    width: int = 3

@dataclass
class Marks(Hook):
    by: float = 1.0

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics["val/marked"] = self.by * state.step
"""


def test_ranks_train_classes_of_a_notebook(
    ray_cluster: Any, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    exec(CELL, vars(cell))
    experiment = Experiment(
        task=cell.Cell(),
        epochs=1,
        batch_size=8,
        hooks={"marks": cell.Marks(by=2.0)},
        workers={"count": 2, "cpus": 0.5},
    )
    done = run(experiment, "runs", "of-a-notebook", engine="gang")
    alone = run(experiment, "runs", "alone", local=True)
    assert (done.status, done.metrics["val/marked"].tolist()) == (
        "finished",
        [2.0 * done.metrics["step"].iloc[0]],
    )
    assert done.config["task"] == alone.config["task"] == "__main__:Cell"


SENT = '''

class Sent:
    """Found by its module's name where it is unpickled."""


def kind_of(sent):
    from hooks import Hook

    return type(sent).__name__ + Hook.__module__


class WithTasks(T):
    def data(self):
        assert ray.get(ray.remote(num_cpus=0)(kind_of).remote(Sent())) == "Senthooks.hook"
        return super().data()
'''
"""A task whose own tasks of Ray's import its module, as Ray Data's do."""


def test_workers_import_from_user_folders_of_any_name(tmp_path: Path) -> None:
    """Ray puts the current folder first on its workers' import path, so its `hooks` and `torch`
    hide installed ones."""
    study = study_in(tmp_path)
    task = (study / "experiments/t.py").read_text()
    (study / "experiments/t.py").write_text(
        task.replace("from torch import Tensor", "import ray\nfrom torch import Tensor") + SENT
    )
    told = hookyard(tmp_path, study, "run", "experiments/t.yaml", "task=experiments.t:WithTasks")
    assert told.returncode == 0, told.stderr
