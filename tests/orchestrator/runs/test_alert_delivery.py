"""How alerts are sent, and what is printed where they cannot be."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator import run
from orchestrator.disk.best import Best
from orchestrator.disk.run_folder import RunFolder
from orchestrator.experiment.sections.notify import Notify
from orchestrator.runs import alert_delivery
from orchestrator.runs.alerts import Alerts
from tests.orchestrator.runs.alert_server import Server
from tests.orchestrator.runs.written import change, written_run
from tests.tasks import described


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    folder = written_run(tmp_path)
    folder.run_file.end("finished")
    best = Best("val/accuracy", "max", 0.9125, epoch=0, step=1, iteration=1)
    change(folder, best=asdict(best))
    return folder


def test_slack_gets_its_text(server: Server, finished: RunFolder) -> None:
    with Alerts(Notify(url=server.url, format="slack"), finished):
        pass
    assert json.loads(server.bodies[0]) == {"text": "points has finished: best val/accuracy 0.9125"}


def test_ntfy_gets_plain_text_and_a_title(server: Server, finished: RunFolder) -> None:
    with Alerts(Notify(url=server.url, format="ntfy"), finished):
        pass
    assert server.bodies == ["points has finished: best val/accuracy 0.9125"]
    assert server.headers[0]["Title"] == "Hookyard: finished"


def test_command_gets_fields_and_message(finished: RunFolder, tmp_path: Path) -> None:
    command = f'cat > {tmp_path}/fields; printf %s "$HOOKYARD_MESSAGE" > {tmp_path}/message'
    with Alerts(Notify(command=command), finished):
        pass
    fields = json.loads((tmp_path / "fields").read_text())
    assert fields["event"] == "finished"
    assert fields["message"] == (tmp_path / "message").read_text()


def test_server_gets_the_alert_that_a_command_could_not_send(
    server: Server, finished: RunFolder
) -> None:
    with Alerts(Notify(command="exit 3", url=server.url), finished):
        pass
    assert server.events() == ["finished"]


def test_server_that_comes_back_gets_the_alert(server: Server, finished: RunFolder) -> None:
    server.answers = [503, 429]
    with Alerts(Notify(url=server.url), finished):
        pass
    assert server.events() == ["finished"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [([404], "it answered 404 Not Found"), ([500] * 4, "it answered 500 Internal Server Error")],
)
def test_refused_alert_is_a_line_without_the_secret(
    answers: list[int],
    reason: str,
    server: Server,
    finished: RunFolder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answers = answers
    with Alerts(Notify(url=server.url), finished):
        pass
    printed = capsys.readouterr().err
    assert f"127.0.0.1: {reason}" in printed
    assert "secret" not in printed
    assert not server.answers, "tried as often as it may"


def test_server_that_is_down_does_not_fail_the_run(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.shutdown()
    server.server_close()
    done = run(described(notify={"url": server.url}), tmp_path, local=True)
    assert done.status == "finished"
    assert "Connection refused" in capsys.readouterr().err


def test_slow_server_delays_the_end_by_a_limited_time(
    server: Server,
    finished: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(alert_delivery, "END_S", 0.05)
    server.released.clear()
    with Alerts(Notify(url=server.url), finished):
        pass
    assert "gave up after 0.05 s" in capsys.readouterr().err


def test_failed_command_is_a_line(finished: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with Alerts(Notify(command="echo no mail >&2; exit 3"), finished):
        pass
    assert "the command ended with 3: no mail" in capsys.readouterr().err
