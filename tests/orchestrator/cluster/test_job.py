"""The job that runs an experiment on a Ray cluster, and the folders that cannot be sent."""

from pathlib import Path

import pytest

from orchestrator.cluster.job import Job, make_job
from orchestrator.cluster.submission import Submission
from orchestrator.errors import UsageError

YAML = "name: points\ntask: tests.tasks:Points\nepochs: 1\n"
SWEEP = (
    "base: points.yaml\nname: many\nsweep: {metric: val/loss, mode: min, search: grid, space: {optimizer.lr: {choice:"
    " [0.1]}}}\n"
)


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/points.yaml").write_text(YAML)
    (tmp_path / "study/many.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job_of(
    studies: Path,
    config: str,
    *overrides: str,
    storage: str = "s3://bucket/runs",
    name: str | None = None,
) -> Job:
    return make_job(Submission.load(studies / config, overrides, storage, name), studies)


def test_the_command_runs_the_same_file_with_the_same_overrides(studies: Path) -> None:
    assert (
        job_of(studies, "study/points.yaml", "epochs=2", "task_args={train: 8}").command
        == "python -m orchestrator run study/points.yaml epochs=2 'task_args={train: 8}' --storage s3://bucket/runs"
        " --name points"
    )


def test_job_of_a_sweep_can_be_named(studies: Path) -> None:
    assert (
        job_of(studies, "study/many.yaml", storage="/shared/runs", name="again").command
        == "python -m orchestrator sweep study/many.yaml --storage /shared/runs --name again"
    )


def test_job_name_follows_the_rule_of_run_names(studies: Path) -> None:
    with pytest.raises(UsageError, match=r"name '\.\./esc' must contain only letters"):
        job_of(studies, "study/points.yaml", name="../esc")


@pytest.mark.parametrize("storage", ["runs", "../runs", "~/runs"])
def test_relative_storage_is_refused(studies: Path, storage: str) -> None:
    with pytest.raises(UsageError, match="must be an absolute path that all nodes can reach"):
        job_of(studies, "study/points.yaml", storage=storage)


def test_storage_with_keys_is_refused(studies: Path) -> None:
    with pytest.raises(UsageError, match="everyone on the cluster could read") as told:
        job_of(studies, "study/points.yaml", storage="s3://AKIA:hunter2@bucket/runs")
    assert "hunter2" not in str(told.value)


def test_files_outside_the_folder_are_refused(studies: Path) -> None:
    submission = Submission.load(studies / "study/points.yaml", (), "s3://bucket/runs", None)
    with pytest.raises(UsageError, match=r"is outside of .*study/deeper"):
        make_job(submission, studies / "study/deeper")


@pytest.mark.parametrize("name", ["hooks", "orchestrator"])
def test_folder_that_hides_hookyards_package_is_refused(studies: Path, name: str) -> None:
    (studies / name).mkdir()
    assert job_of(studies, "study/points.yaml").name == "points", (
        "a folder of other files is no package"
    )
    (studies / name / "__init__.py").touch()
    with pytest.raises(
        UsageError, match=f"{studies / name} would hide Hookyard's own .* for example to my_{name}"
    ):
        job_of(studies, "study/points.yaml")
