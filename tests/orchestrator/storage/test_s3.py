"""Runs on a real S3 server, moto's, on this machine's loopback."""

import json
import logging
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import RunError, UsageError, list_runs, open_run, resume, run
from orchestrator.cli import app
from orchestrator.disk import signatures
from orchestrator.runs.listing import query_runs
from orchestrator.storage import Storage
from orchestrator.storage.read_only import ReadOnlyStorage
from orchestrator.storage.remote_files import RemoteFiles
from tests.orchestrator.disk import test_media
from tests.orchestrator.runs.written import change, written_run
from tests.tasks import described

pytest.importorskip("moto", reason="needs moto, which the extra dev brings")
boto3 = pytest.importorskip("boto3", reason="needs boto3, which moto brings")

SECRET = "hunter2-of-the-bucket"


class Server:
    """An S3 server that can be stopped and started again where it was, with all it keeps."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()

    def stop(self) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = boto3.client("s3")
    if not client.list_buckets()["Buckets"]:
        client.create_bucket(Bucket="bucket")
    return "s3://bucket"


@dataclass
class Outage(Hook):
    """Takes the server away after a step, and brings it back a moment later."""

    step: int = 0

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step == self.step and self.server is not None:
            self.server.stop()
            threading.Timer(0.3, self.server.start).start()


Outage.server = None


@dataclass
class Breaks(Hook):
    """Raises after a step."""

    step: int = 0

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step == self.step:
            raise ArithmeticError("broken on purpose")


def noisy(**hooks: dict[str, Any]) -> Any:
    task_args = {"train": 44, "val": 11, "batch_norm": True, "dropout": 0.3, "noisy": True}
    return described(
        task_args=task_args,
        batch_size=6,
        hooks={"checkpoint": {"best": "val/accuracy"}, "json_lines": {}, **hooks},
    )


def invoke(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_images_and_tables_are_in_the_bucket_once_after_a_resume(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = {"weights": {"type": f"{test_media.__name__}:Weights"}}
    whole = run(test_media.pictured(hooks=hooks), tmp_path, local=True)
    monkeypatch.setattr(test_media.Weights, "breaks_at", 7)
    with pytest.raises(RunError, match="broken on purpose"):
        run(test_media.pictured(hooks=hooks), f"{bucket}/media", local=True)
    monkeypatch.setattr(test_media.Weights, "breaks_at", 0)
    resumed = resume(f"{bucket}/media/points")
    there = resumed.folder.storage
    here = whole.folder.storage
    assert there.read("media.jsonl") == here.read("media.jsonl")
    assert there.tree("media").keys() == here.tree("media").keys()
    for file in here.tree("media"):
        assert there.read(f"media/{file}") == here.read(f"media/{file}")


def test_run_survives_an_outage_of_its_store(
    bucket: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outage, "server", server)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    there = run(
        noisy(outage={"type": "tests.orchestrator.storage.test_s3:Outage", "step": 8}),
        f"{bucket}/one",
        local=True,
    )
    assert list((tmp_path / "temporary").glob("hookyard-hooks-*")) == [], (
        "temporary files of hooks are removed"
    )
    here = run(noisy(), tmp_path, local=True)
    assert there.status == "finished"
    columns = ["rank", "phase", "epoch", "iteration", "step", "samples", "loss", "lr"]
    pd.testing.assert_frame_equal(there.stats[columns], here.stats[columns])
    assert there.metrics["val/loss"].tolist() == here.metrics["val/loss"].tolist()
    assert str(there.checkpoint("best")).removeprefix(there.path) == str(
        here.checkpoint("best")
    ).removeprefix(str(here.path))
    at_home = {
        path.relative_to(here.path).as_posix()
        for path in Path(here.path).rglob("*")
        if path.is_file()
    }
    assert {name for name in at_home if not name.startswith(".driver/")} - {"log.txt"} <= {
        *there.folder.storage.tree()
    }

    assert [row["rows"] for row in invoke("stats", str(there.path), "--by", "rank")] == [16]
    assert invoke("show", str(there.path))["checkpoints"] == ["epoch-0001", "epoch-0002"]
    assert [entry["path"] for entry in invoke("ls", "--storage", f"{bucket}/one")] == [there.path]
    assert invoke("doctor", str(there.path))["signs"]["ranks"] == 1
    assert invoke("watch", str(there.path))["status"] == "finished"
    assert CliRunner().invoke(app, ["report", str(there.path)]).exit_code == 0
    assert there.folder.storage.read("report.html").lower().startswith(b"<!doctype html>")


def test_run_resumes_by_a_url_with_credentials_that_are_never_recorded(
    bucket: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    options = f"?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{server.port}"
    storage = f"s3://testing:{SECRET}@bucket/two"
    monkeypatch.setattr(
        "sys.argv", ["hookyard", "run", "points.yaml", "--storage", storage + options]
    )
    breaks = {"type": "tests.orchestrator.storage.test_s3:Breaks", "step": 11}
    with pytest.raises(RunError):
        run(noisy(breaks=breaks), storage + options, local=True)
    cut = open_run(f"{storage}/points{options}")
    assert cut.path == f"s3://bucket/two/points{options}"
    text = cut.folder.storage.read("experiment.yaml").decode()
    cut.folder.storage.write("experiment.yaml", text.replace("step: 11", "step: 1000"))
    done = resume(f"{storage}/points{options}")
    whole = run(noisy(), tmp_path, local=True)
    assert done.stats["loss"].tolist() == whole.stats["loss"].tolist()
    assert done.folder.read_metadata().provenance.argv[-1] == "s3://bucket/two" + options
    for name, weight in whole.load("best").state_dict().items():
        assert torch.equal(done.load("best").state_dict()[name], weight)
    longer = run(done.continue_from("last", ["epochs=3"]), storage + options, local=True)
    assert longer.metrics["epoch"].tolist() == [1, 2]
    for one in (done, longer):
        files = {name: one.folder.storage.read(name) for name in one.folder.storage.tree()}
        assert len(files) > 10
        assert [name for name, content in files.items() if SECRET.encode() in content] == []
    asked = CliRunner().invoke(app, ["run", f"{storage}/points{options}"])
    assert (asked.exit_code, SECRET in asked.output) == (2, False)
    assert f"hookyard run '{done.path}@best'" in asked.output
    planned = CliRunner().invoke(
        app, ["run", f"{storage}/points{options}@best", "epochs=3", "--plan", "--json"]
    )
    assert (json.loads(planned.stdout)["continued_from"]["run"], SECRET in planned.output) == (
        done.path,
        False,
    )


def test_missing_bucket_is_refused_before_the_run_starts(bucket: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"storage s3://nowhere/runs.* refuses: .*NO_SUCH_BUCKET.*Nothing was started",
    ):
        run(described(epochs=1), "s3://nowhere/runs", local=True)


@pytest.fixture
def requests(bucket: str, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The requests since it was asked last: `PUT /bucket/name`."""
    with caplog.at_level(logging.INFO, "werkzeug"):

        def since() -> list[str]:
            lines = "\n".join(record.getMessage() for record in caplog.records)
            caplog.clear()
            return re.findall(r'"(?:\x1b\[[0-9;]*m)*((?:GET|HEAD|PUT|POST|DELETE) [^ ?]*)', lines)

        yield since


def test_operations_take_few_requests(bucket: str, requests: Callable[[], list[str]]) -> None:
    storage = Storage(f"{bucket}/counted")
    for number in range(40):
        storage.write(f"run-{number:02d}/run.json", b"{}")
    if len(requests()) != 40:
        pytest.skip("an older pyarrow, which writes a small file with three requests")
    assert (
        storage.map(lambda name: storage.read(f"{name}/run.json"), storage.names()) == [b"{}"] * 40
    )
    assert len(requests()) == 81, "one to list, and two to read a file"
    for line in ("one\n", "two\n", "three\n"):
        storage.append("log.txt", line)
    assert len(requests()) <= 9
    assert storage.read("log.txt") == b"one\ntwo\nthree\n"
    assert storage.verifies_uploads
    requests()
    storage.delete("run-00/run.json")
    storage.delete("run-01")
    assert len(requests()) <= 11
    assert storage.names()[:3] == ["log.txt", "run-00", "run-02"]


def test_table_of_runs_lists_a_bucket_once_and_reads_what_has_changed(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(f"{bucket}/all-runs")
    folders = [written_run(str(storage), f"run-{number}") for number in range(3)]
    for number, folder in enumerate(folders):
        counters = {"attempt": 0, "epoch": 0, "step": 1, "iteration": 1}
        folder.append_report({**counters, "val/accuracy": number / 4})
        change(folder, tags=["paper"] if number else [])
        folder.run_file.end("finished")
    monkeypatch.setattr(signatures, "_RECENT_S", 0.0)

    reads: list[str] = []
    lists: list[str] = []
    read, list_infos = RemoteFiles.read, RemoteFiles.list_infos

    def count_read(self: RemoteFiles, path: str, start: int, size: int | None = None) -> bytes:
        reads.append(path.removeprefix("bucket/all-runs/"))
        return read(self, path, start, size)

    def count_list(self: RemoteFiles, path: str, recursive: bool = False) -> list[Any]:
        lists.append(path)
        return list_infos(self, path, recursive)

    monkeypatch.setattr(RemoteFiles, "read", count_read)
    monkeypatch.setattr(RemoteFiles, "list_infos", count_list)
    rows = list_runs(str(storage))
    assert rows.sort_values("name")["best"].tolist() == [0.0, 0.25, 0.5]
    assert rows["path"].tolist() == [str(folder) for folder in folders]
    for folder in folders:
        own = [path for path in reads if path.startswith(f"{folder.name}/")]
        assert len(own) == len({*own})

    reads.clear()
    lists.clear()
    asked = query_runs(str(storage), "select name from runs where tag = 'paper' order by name")
    assert asked["name"].tolist() == ["run-1", "run-2"]
    assert (reads, lists) == ([".runs.parquet"], ["bucket/all-runs"])

    change(folders[0], tags=["paper", "late"])
    reads.clear()
    asked = query_runs(str(storage), "select name from runs where tag = 'late'")
    assert asked["name"].tolist() == ["run-0"]
    assert {path.partition("/")[0] for path in reads} == {".runs.parquet", "run-0"}


def test_file_written_a_moment_ago_is_read_again(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket's times are whole seconds, in which a file of the same size can change again."""
    folder = written_run(f"{bucket}/recent", "a")
    change(folder, notes="one")
    assert list_runs(f"{bucket}/recent")["notes"].tolist() == ["one"]
    change(folder, notes="two")
    monkeypatch.setattr(signatures, "_RECENT_S", 0.0)  # as a moment later
    assert list_runs(f"{bucket}/recent")["notes"].tolist() == ["two"]


def test_runs_of_a_bucket_are_served_and_nothing_is_written(bucket: str, server: Server) -> None:
    pytest.importorskip("starlette", reason="needs the extra serve")
    from orchestrator.serve.app import make_app
    from tests.orchestrator.serve.asking import Browser

    folder = written_run(f"{bucket}/served", "first")
    folder.append_report({"attempt": 0, "epoch": 0, "iteration": 100, "val/accuracy": 0.625})
    files = Storage(f"{bucket}/served").tree()
    url = f"s3://testing:{SECRET}@bucket/served?endpoint_override={server.url}"
    browser = Browser(make_app(ReadOnlyStorage(url), "token", "127.0.0.1"))
    browser.get("/?token=token")
    pages = [browser.get(address).text for address in ("/", "/runs/first", "/runs/none")]
    assert "first" in pages[0]
    assert "0.625" in pages[1]
    assert "There is no run none" in pages[2]
    assert SECRET not in "".join(pages)
    assert Storage(f"{bucket}/served").tree() == files
