"""Alerts, received by a real HTTP server and by a command."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import run, sweep
from orchestrator.disk.new_run import create_run
from orchestrator.errors import ConfigError, RunError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.sections.notify import Notify
from orchestrator.runs.alerts import Alerts
from tests.orchestrator.runs.alert_server import Server
from tests.orchestrator.runs.written import written_run
from tests.tasks import described


def test_run_tells_its_start_and_its_end(server: Server, tmp_path: Path) -> None:
    notify = {"url": server.url, "events": ["started", "finished", "failed"]}
    done = run(described(notify=notify), tmp_path, local=True)
    assert server.events() == ["started", "finished"]
    text, _, value = server.messages()[1].rpartition(" ")
    assert text.startswith("points has finished: best val/")
    assert done.best is not None
    assert float(value) == pytest.approx(done.best.value, rel=1e-3)
    assert json.loads(server.bodies[1])["path"] == str(done.folder)


def test_failed_run_tells_its_error(server: Server, tmp_path: Path) -> None:
    experiment = described(task_args={"fails": True}, notify={"url": server.url})
    with pytest.raises(RunError):
        run(experiment, tmp_path, local=True)
    assert server.events() == ["failed"]
    assert "this loss fails on purpose" in server.messages()[0]


def test_first_nan_and_the_target_are_told_once(server: Server, tmp_path: Path) -> None:
    notify = Notify(url=server.url, target="val/accuracy >= 0.5", events=["nan", "target"])
    place = {"epoch": 1, "step": 20}
    with Alerts(notify, written_run(tmp_path)) as sender:
        sender.check_report({"train/loss": 2.0, "val/accuracy": 0.4, **place})
        sender.check_report({"train/loss": float("nan"), "val/accuracy": 0.5, **place})
        sender.check_report({"train/loss": float("nan"), "val/accuracy": 0.6, **place})
    assert server.messages() == [
        "points has train/loss nan in epoch 2, step 20",
        "points has reached val/accuracy >= 0.5 in epoch 2, step 20",
    ]


@pytest.mark.parametrize("name", ["train/loss_d", "val/loss", "val/noisy/loss"])
def test_nan_of_each_kind_of_loss_is_told(server: Server, tmp_path: Path, name: str) -> None:
    with Alerts(Notify(url=server.url, events=["nan"]), written_run(tmp_path)) as sender:
        sender.check_report({"train/lossless": float("nan"), "epoch": 0, "step": 1})
        sender.check_report({name: float("nan"), "epoch": 0, "step": 2})
    assert server.messages() == [f"points has {name} nan in epoch 1, step 2"]


@pytest.mark.parametrize("place", ["", "trials/trial-0000"])
def test_target_that_was_reached_before_a_resume_is_not_told_again(
    server: Server, tmp_path: Path, place: str
) -> None:
    folder = written_run(tmp_path)
    notify = Notify(url=server.url, target="val/accuracy >= 0.95", events=["target"])
    counters = {"epoch": 1, "step": 20, "iteration": 20}
    reached = create_run(folder.storage, place, "hooks: {}\n") if place else folder
    attempt = reached.begin_attempt() if place else reached.read_attempts()[-1]
    for accuracy in (0.94, 0.96):
        with Alerts(notify, folder) as sender:
            sender.check_report({"val/accuracy": accuracy, **counters})
        reached.append_report({"attempt": attempt.number, "val/accuracy": accuracy, **counters})
    with Alerts(notify, folder) as sender:
        sender.check_report({"val/accuracy": 0.97, **counters})
    assert len(server.messages()) == 1


def test_text_for_a_loss_is_no_alert(server: Server, tmp_path: Path) -> None:
    with Alerts(Notify(url=server.url, events=["nan"]), written_run(tmp_path)) as sender:
        sender.check_report({"val/worst_loss": "none", "epoch": 0, "step": 1})
    assert server.messages() == []


def test_hang_names_the_trial(server: Server, tmp_path: Path) -> None:
    folder = written_run(tmp_path)
    with Alerts(Notify(url=server.url, events=["hang"]), folder) as sender:
        sender.send_hang("points", "rank 1 hangs")
        sender.send_hang("trial-0003", "rank 0 hangs")
    assert server.messages() == [
        "points hangs: rank 1 hangs",
        "points (trial-0003) hangs: rank 0 hangs",
    ]


def test_sweep_tells_its_first_failed_trial_and_its_best_one(
    server: Server, tmp_path: Path
) -> None:
    space = {"task_args.fails": {"grid": [False, True]}, "seed": {"grid": [0, 1]}}
    settings = {"metric": "val/accuracy", "mode": "max", "space": space}
    experiment = described(sweep=settings, notify={"url": server.url})
    sweep(experiment, tmp_path, local=True)
    assert server.events() == ["failed", "finished"]
    assert "(trial-" in server.messages()[0]
    assert "has failed: " in server.messages()[0]
    assert server.messages()[1].startswith("points has finished: best val/accuracy ")


def test_evaluation_tells_nothing(server: Server, tmp_path: Path) -> None:
    done = run(described(notify={"url": server.url}), tmp_path, local=True)
    server.bodies.clear()
    done.evaluate("last", phase="val", local=True)
    assert not server.bodies


def test_url_of_an_environment_variable_is_never_stored(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALERT_URL", server.url)
    done = run(described(notify={"url": "$ALERT_URL"}), tmp_path, local=True)
    assert server.events() == ["finished"]
    files = [path for path in done.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes()]


def test_unset_variable_is_an_error_before_the_start(tmp_path: Path) -> None:
    experiment = described(notify={"url": "${ALERT_URL}"})
    with pytest.raises(ConfigError, match=r"notify\.url.*ALERT_URL is not set"):
        run(experiment, tmp_path, local=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sets neither url nor command"),
        ({"command": "true", "format": "slack"}, "has no effect without url"),
        ({"url": "example.com"}, "must begin with http"),
        ({"url": "https://me:word@example.com"}, "contains a password"),
        ({"command": "true", "target": "val/accuracy"}, "must be a metric, >= or <="),
        ({"command": "true", "target": "loss <= low"}, "'low' is not a number"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(notify=settings)


def test_target_of_a_metric_that_no_report_has_is_refused(tmp_path: Path) -> None:
    experiment = tmp_path / "points.yaml"
    experiment.write_text(
        "{name: told, task: tests.tasks:Points, epochs: 1, notify: {command: ls, target: accuracy >= 0}}"
    )
    with pytest.raises(ConfigError, match=r"notify\.target: 'accuracy' has no phase"):
        load_experiment(experiment)


@pytest.mark.parametrize(
    ("target", "value", "is_reached"),
    [
        ("val/accuracy >= 0.9", 0.9, True),
        ("val/accuracy <= 0.9", 0.9, True),
        ("val/accuracy <= 0.9", 0.91, False),
        ("val/accuracy >= 0.9", float("nan"), False),
        ("val/other >= 0.9", 1.0, False),
    ],
)
def test_target_compares_as_it_reads(target: str, value: float, is_reached: bool) -> None:
    settings = Notify(command="true", target=target)
    assert settings.has_reached_target({"val/accuracy": value}) is is_reached
