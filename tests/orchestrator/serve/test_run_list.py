"""The table of runs, beside rows that are known by hand."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.serve.run_list import outline_runs
from orchestrator.serve.selection import Selection
from orchestrator.storage.read_only import ReadOnlyStorage
from orchestrator.tables.run_index import RunIndex
from tests.orchestrator.report.reading import parsed, text_of
from tests.orchestrator.runs.written import written_run
from tests.orchestrator.tables.test_run_index import change, write_run

RUNS: dict[str, dict[str, Any]] = {
    "a": {"metadata": {"tags": ["paper"]}, "batch_size": 8},
    "b": {"metadata": {"notes": "with dropout"}, "batch_size": 16},
    "c": {"metadata": {"tags": ["paper", "slow"]}, "batch_size": 16},
}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Three runs with the best values 0.9, 0.9 and 0.95, and one that has reported nothing."""
    for day, (name, fields) in enumerate(RUNS.items(), start=1):
        folder = write_run(tmp_path, name, **fields)
        change(folder, started=f"2026-11-0{day}T00:00:00Z", ended=f"2026-11-0{day}T00:01:30Z")
    folder.append_report({"attempt": 1, "epoch": 3, "iteration": 40, "val/accuracy": 0.95})
    change(written_run(tmp_path, "d", batch_size=32), started="2026-10-01T00:00:00Z")
    return tmp_path


def show(storage: Path, **parameters: str) -> list[str]:
    """Return the first cells of the table: names of runs, and headings of groups."""
    table = RunIndex(ReadOnlyStorage(storage)).read()
    page = outline_runs(table, Selection.read(parameters), "runs")
    rows = parsed(page.header).iterfind(".//tbody/tr")
    return [text_of(heading) for row in rows if (heading := row.find("th")) is not None]


def test_newest_run_is_first(storage: Path) -> None:
    assert show(storage) == ["c", "b", "a", "d"]


@pytest.mark.parametrize(
    ("sort", "order", "names"),
    [
        ("name", "", "abcd"),
        ("name", "descending", "dcba"),
        ("best", "", "cabd"),
        ("best", "ascending", "abcd"),
        ("tags", "", "acdb"),
        ("nothing", "", "cbad"),
    ],
)
def test_runs_are_sorted_and_empty_cells_come_last(
    storage: Path, sort: str, order: str, names: str
) -> None:
    assert "".join(show(storage, sort=sort, order=order)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "cbad"),
        ("paper", "ca"),
        ("PAPER slow", "c"),
        ("dropout", "b"),
        ("running", "d"),
        ("batch_size=16", "cb"),
        ("batch_size=16 paper", "c"),
        ("batch_size=8.0", ""),
        ("optimizer.lr=0.1", "cbad"),
        ("optimizer.type=sgd", "cbad"),
        ("optimizer.nothing=1", ""),
    ],
)
def test_runs_have_all_words_of_the_filter(storage: Path, text: str, names: str) -> None:
    assert "".join(show(storage, filter=text)) == names


def test_groups_have_their_best_and_median(storage: Path) -> None:
    assert show(storage, group="batch_size") == [
        "batch_size = 8 1 run; val/accuracy: best 0.9, median 0.9",
        "a",
        "batch_size = 16 2 runs; val/accuracy: best 0.95, median 0.925",
        "c",
        "b",
        "batch_size = 32 1 run",
        "d",
    ]


def test_heading_of_a_group_describes_rows_beyond_the_limit(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.serve.run_list.MAX_ROWS", 2)
    assert show(storage, group="batch_size", sort="name") == [
        "batch_size = 8 1 run; val/accuracy: best 0.9, median 0.9",
        "a",
        "batch_size = 16 2 runs; val/accuracy: best 0.95, median 0.925",
        "b",
    ]


def test_groups_of_nearly_equal_values_have_headings_of_their_own(storage: Path) -> None:
    for name, rate in (("e", 0.00012341), ("f", 0.00012342)):
        written_run(storage, name, optimizer={"type": "SGD", "lr": rate})
    shown = show(storage, group="optimizer.lr")
    headings = [text.split(" 1 run")[0] for text in shown if "optimizer.lr = 0.0001" in text]
    assert headings == ["optimizer.lr = 0.00012341", "optimizer.lr = 0.00012342"]
    assert show(storage, filter="optimizer.lr=0.00012341") == ["e"]


def test_runs_without_the_key_are_a_group(storage: Path) -> None:
    change(written_run(storage, "e", accumulate=2), started="2026-10-02T00:00:00Z")
    change(written_run(storage, "f", accumulate="auto"), started="2026-10-03T00:00:00Z")
    headings = [text for text in show(storage, group="accumulate") if len(text) > 1]
    assert [heading.partition(" = ")[2].split(" 1 run")[0] for heading in headings] == [
        "1 4 runs; val/accuracy: best 0.95, median 0.9",
        "2",
        "auto",
    ]


def test_unknown_key_is_said(storage: Path) -> None:
    table = RunIndex(ReadOnlyStorage(storage)).read()
    page = outline_runs(table, Selection.read({"group": "batch"}), "runs")
    assert "4 of 4 runs and sweeps. No run has the key batch" in text_of(parsed(page.header))


def test_only_keys_in_which_runs_differ_are_offered(storage: Path) -> None:
    table = RunIndex(ReadOnlyStorage(storage)).read()
    page = outline_runs(table, Selection.read({"group": "batch_size"}), "runs")
    options = [*parsed(page.header).iterfind(".//option")]
    assert [option.get("value") for option in options] == ["", "batch_size"]
    assert options[1].get("selected") == ""


def test_heading_of_the_sorted_column_turns_its_order(storage: Path) -> None:
    table = RunIndex(ReadOnlyStorage(storage)).read()
    selection = Selection.read({"sort": "best", "filter": "a b", "group": "batch_size"})
    page = outline_runs(table, selection, "runs")
    headings = {text_of(heading): heading for heading in parsed(page.header).iter("th")}
    link = headings["best"].find("a")
    assert headings["best"].get("aria-sort") == "descending"
    assert link is not None
    assert link.get("href") == "/?filter=a+b&group=batch_size&sort=best&order=ascending"
