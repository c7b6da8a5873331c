"""The live page as a browser gets it, of runs written by hand."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
import torch

from hooks import State
from orchestrator.disk.media import MediaWriter
from orchestrator.serve import live_runs
from orchestrator.serve.app import make_app
from orchestrator.storage import Storage
from orchestrator.storage.read_only import ReadOnlyStorage
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.report.reading import charts_of, lines_of, main_of, tables_of, text_of
from tests.orchestrator.runs.written import NOBODY, rows_of, written_run
from tests.orchestrator.serve.asking import Browser
from tests.orchestrator.tables.test_run_index import change, write_run

HOSTILE = "<img src=x onerror=alert(1)>"


def browse(storage: Path | str) -> Browser:
    """A browser that has the token."""
    browser = Browser(make_app(ReadOnlyStorage(storage), "token", "127.0.0.1"))
    assert browser.get("/?token=token").code == 303
    return browser


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    files = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        files[str(path)] = (status.st_size, status.st_mtime_ns)
    return files


def test_runs_and_their_reports_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path, "first", metadata={"tags": ["paper"], "notes": "why"})
    folder = write_run(tmp_path, "second")
    folder.log("one\ntwo")
    browser = browse(tmp_path)

    listed = text_of(main_of(browser.get("/").text))
    assert all(text in listed for text in ("first", "second", "paper", "why", "val/accuracy"))

    page = browser.get("/runs/second")
    sections = {part.get("id"): text_of(part) for part in main_of(page.text).iter("section")}
    assert {"findings", "learning", "experiment"} <= sections.keys()
    assert "one\ntwo" in sections["log"]


def test_nothing_is_written_into_the_storage(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first")
    rows_of(folder, training(2, 100, loss=0.5))
    before = files_of(tmp_path)
    browser = browse(tmp_path)
    for path in ("/", "/?group=optimizer.lr&filter=first", "/runs/first", "/runs/other"):
        browser.get(path)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../secret",
        "%2e%2e/secret",
        "first/../../secret",
        "first/%2e%2e/%2e%2e/secret",
        "%2Fetc/passwd",
        "/etc/passwd",
        "first/run.json",
        "first/",
        "first/stats",
        "",
        ".",
        "first%00",
        "FIRST",
    ],
)
def test_only_paths_of_runs_are_answered(tmp_path: Path, path: str) -> None:
    write_run(tmp_path / "runs", "first")
    write_run(tmp_path, "secret")
    answered = browse(tmp_path / "runs").get(f"/runs/{path}")
    assert answered.code == 404
    assert "val/accuracy" not in answered.text


def test_names_notes_and_logs_are_text(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    folder = write_run(tmp_path, name, metadata={"tags": [HOSTILE], "notes": HOSTILE})
    folder.log(HOSTILE)
    browser = browse(tmp_path)
    hostile = quote(HOSTILE)
    addresses = ["/", f"/?filter={hostile}&group={hostile}", f"/runs/{quote(name)}"]
    pages = [browser.get(address) for address in (*addresses, f"/runs/{hostile}x")]
    assert [page.code for page in pages] == [200, 200, 200, 404]
    for page in pages:
        assert "<img" not in page.text
        main_of(page.text)


def test_page_says_when_it_has_not_changed(tmp_path: Path) -> None:
    folder = written_run(tmp_path, "first")
    browser = browse(tmp_path)
    page = browser.get("/runs/first")
    tag = page.headers["etag"]
    assert browser.get("/runs/first", if_none_match=tag).code == 304

    rows_of(folder, training(2, 100, loss=0.5))
    assert browser.get("/runs/first", if_none_match=tag).code == 200


@pytest.fixture
def reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request reads the storage, however soon it follows the last one."""
    monkeypatch.setattr(Storage, "read_interval_s", 0.0)
    monkeypatch.setattr(live_runs, "_PAUSE", 0.0)


@pytest.mark.usefixtures("reads_at_once")
def test_running_run_goes_on(tmp_path: Path) -> None:
    folder = written_run(tmp_path, "first")
    browser = browse(tmp_path)

    def look() -> str:
        return text_of(main_of(browser.get("/runs/first").text))

    assert "running" in look()
    folder.append_report(
        {"attempt": 0, "epoch": 0, "step": 100, "iteration": 100, "val/accuracy": 0.625}
    )
    assert "0.625" in look()
    folder.log("a new line")
    assert "a new line" in look()
    folder.run_file.end("finished")
    assert "finished" in look()


def test_dead_driver_is_lost(tmp_path: Path) -> None:
    change(written_run(tmp_path, "first"), pid=NOBODY)
    assert "lost" in text_of(main_of(browse(tmp_path).get("/").text))


def test_damaged_run_is_listed_and_its_page_says_why(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first")
    (Path(str(folder)) / "run.json").write_text("{")
    browser = browse(tmp_path)
    assert "damaged" in browser.get("/").text
    answered = browser.get("/runs/first")
    assert answered.code == 500
    assert "run.json is damaged" in answered.text


@pytest.mark.usefixtures("reads_at_once")
def test_removed_storage_is_an_answer(tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    storage.mkdir()
    browser = browse(storage)
    assert "no runs yet" in browser.get("/").text
    os.rmdir(storage)
    answered = browser.get("/")
    assert answered.code == 400
    assert "does not exist" in answered.text


def test_trial_links_to_its_sweep(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"objectives": [["val/accuracy", "max"]], "trials": 1}
    write_run(tmp_path, "rates", metadata={"sweep": settings})
    write_run(tmp_path / "rates/trials", "trial-0000", metadata={"trial": "trial-0000"})
    browser = browse(tmp_path)
    page = browser.get("/runs/rates/trials/trial-0000").text
    assert 'href="/runs/rates"' in page[: page.index("<main")]
    assert "trial-0000" not in browser.get("/").text


def test_storage_of_a_bucket_is_served(location: str) -> None:
    storage = location.removesuffix("/run")
    folder = written_run(storage, "first")
    folder.append_report({"attempt": 0, "epoch": 0, "iteration": 100, "val/accuracy": 0.625})
    browser = browse(storage)
    assert "first" in browser.get("/").text
    assert "0.625" in browser.get("/runs/first").text


def test_scripts_and_styles_are_served(tmp_path: Path) -> None:
    browser = browse(tmp_path)
    for name, kind in (
        ("style.css", "css"),
        ("script.js", "javascript"),
        ("charts.js", "javascript"),
    ):
        answered = browser.get(f"/{name}")
        assert kind in answered.headers["content-type"]
        assert len(answered.text) > 100


def test_chosen_runs_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "first", batch_size=8)
    write_run(tmp_path, "second", batch_size=16)
    browser = browse(tmp_path)
    assert 'value="second"' in browser.get("/").text

    page = main_of(browser.get("/compare?run=second&run=first").text)
    tables = tables_of(page)
    assert tables["config"][:2] == [["", "second", "first"], ["batch_size", "16", "8"]]
    assert ["val/accuracy best", "0.9", "0.9 (equal)"] in tables["metrics"]
    accuracy = lines_of(charts_of(page)["val/accuracy"])
    assert accuracy == {name: ([10, 20, 30], [0.5, 0.9, 0.7]) for name in ("second", "first")}


@pytest.mark.parametrize(
    ("address", "code", "text"),
    [
        ("/compare", 400, "choose 2 to"),
        ("/compare?run=first", 400, "choose 2 to"),
        ("/compare?run=first&run=../secret", 404, "There is no run ../secret"),
        ("/compare?run=first&run=rates", 400, "is a sweep"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, address: str, code: int, text: str
) -> None:
    settings: dict[str, Any] = {"objectives": [["val/accuracy", "max"]], "trials": 1}
    write_run(tmp_path, "first")
    write_run(tmp_path, "rates", metadata={"sweep": settings})
    answered = browse(tmp_path).get(address)
    assert answered.code == code
    assert text in answered.text


def test_images_of_runs_are_served_and_no_other_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first")
    state = State(media=MediaWriter(folder.storage), phase="val")
    state.record_image("a b/50%", torch.rand(4, 6))
    state.record_table("worst", pd.DataFrame({"a": [1]}))
    state.media.close()  # type: ignore[union-attr]
    (tmp_path / "first/media/val/a b/other.png").write_bytes(b"no image of the index")
    browser = browse(tmp_path)
    images = [*main_of(browser.get("/runs/first").text).iter("img")]
    address = images[0].get("src")
    answer = browser.get(address)
    assert answer.headers["content-type"] == "image/png"
    file = "media/val/a b/50%/step-00000000.png"
    assert answer.body == (tmp_path / "first" / file).read_bytes()
    assert browser.get(address, if_none_match=answer.headers["etag"]).code == 304

    for run, other in (
        ("first", "media/val/a b/other.png"),
        ("first", "media/val/worst/step-00000000.csv"),
        ("first", "run.json"),
        ("first", "../first/" + file),
        ("first", ""),
        ("../first", file),
        ("second", file),
    ):
        assert browser.get(f"/media?run={quote(run)}&file={quote(other)}").code == 404, other
    (tmp_path / "first" / file).unlink()
    assert browser.get(address).code == 404
    stranger = Browser(make_app(ReadOnlyStorage(tmp_path), "token", "127.0.0.1"))
    assert stranger.get(address).code == 401


def test_page_changes_with_a_new_image(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first")
    browser = browse(tmp_path)
    assert not [*main_of(browser.get("/runs/first").text).iter("img")]
    state = State(media=MediaWriter(folder.storage))
    state.record_image("gray", torch.rand(4, 6))
    state.media.close()  # type: ignore[union-attr]
    assert len([*main_of(browser.get("/runs/first").text).iter("img")]) == 1
