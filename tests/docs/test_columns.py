"""The reference names every column that a run records, with its dtype."""

import re
from pathlib import Path

import pytest

from docs.site.columns import list_tables
from orchestrator import Run, load_experiment, open_sweep, run, sweep

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "epochs=1",
    "batch_size=256",
    "workers.count=1",
    "task_args.width=8",
    "hooks.gradient_clip.max_norm=1.0",
    "hooks.activation_stats.every=5 steps",
    "hooks.optimizer_stats.every=5 steps",
    "hooks.model_complexity={}",
    "hooks.throughput={every: 5, peak_flops: 1.0e+9}",
    "hooks.device_stats.every=5",
    "hooks.row_stats={report: [step_s/p95]}",
    "hooks.tensorboard=null",
    "hooks.progress_bar=false",
)
NOT_ON_A_CPU = ("cuda_", "gpu_", "host_step_s", "memory/cuda_")
NOT_IN_THIS_RUN = {"lr_1", "microbatches", "evaluations", "nonfinite", "loss_spike"}
HOOKS_NOT_IN_THIS_RUN = ("byol", "dino", "ibot")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose hooks record all that a CPU can."""
    folder = tmp_path_factory.mktemp("columns")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return run(load_experiment("experiments/digits.yaml", SETTINGS), folder, local=True)


def read_documented(table: str) -> dict[str, str]:
    """Return the dtype of each column of a table, by name; empty for float64."""
    (found,) = (one for one in list_tables() if one.name == table)
    return {
        name: column.dtype
        for column, hook in found.columns
        if hook not in HOOKS_NOT_IN_THIS_RUN
        for name in re.findall(r"`(.+?)`", column.names)
    }


def test_rows_have_the_documented_columns_and_dtypes(recorded: Run) -> None:
    documented = read_documented("run.stats")
    dtypes = {name: str(dtype) for name, dtype in recorded.stats.dtypes.items()}
    assert dtypes == {name: documented[str(name)] or "float64" for name in dtypes}
    expected = {name for name in documented if not name.startswith(NOT_ON_A_CPU)}
    assert expected - NOT_IN_THIS_RUN == set(dtypes)


def test_reports_have_the_documented_columns(recorded: Run) -> None:
    documented = read_documented("run.metrics")
    patterns = [re.sub(r"<\w+>", r"\\w+", name) for name in documented]
    unknown = [
        name
        for name in recorded.metrics
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    ]
    assert unknown == []
    plain = {name for name in documented if "<" not in name}
    assert {name for name in plain if not name.startswith(NOT_ON_A_CPU)} <= set(recorded.metrics)


def test_hook_costs_have_the_documented_columns(recorded: Run) -> None:
    assert set(read_documented("run.hook_costs")) == set(recorded.hook_costs)


def test_trials_have_the_documented_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = [
        *SETTINGS,
        "sweep={metric: val/accuracy, space: {optimizer.lr: {grid: [0.1, 0.01]}}}",
    ]
    sweep(load_experiment("experiments/digits.yaml", settings), tmp_path, local=True)
    trials = open_sweep(tmp_path / "digits").trials
    documented = read_documented("sweep.trials")
    patterns = [re.sub(r"<\w+>", ".+", name) for name in documented]
    unknown = [
        name for name in trials if not any(re.fullmatch(pattern, name) for pattern in patterns)
    ]
    assert unknown == []
    only_elsewhere = {
        "configuration",
        "infeasible",
        "leader",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
    }
    plain = {name for name in documented if "<" not in name and not name.startswith("gpu_")}
    assert plain - only_elsewhere <= set(trials)
