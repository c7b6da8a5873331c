"""Files of a later version of Hookyard are refused in a sentence, and every JSON file is strict
JSON."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import Tensor
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import open_run, open_sweep, resume, run, sweep
from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows import file_format
from orchestrator.disk.rows.rank_files import RankFiles
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, NewerFormat, UsageError
from orchestrator.storage import Storage
from orchestrator.storage.format_version import METADATA_KEY
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.validation import check_mapping
from tests.orchestrator.runs.written import change
from tests.tasks import Points, described

SPACE = {"optimizer.lr": {"grid": [0.1, 0.01]}}
SWEEP = {"metric": "val/accuracy", "mode": "max", "space": SPACE}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can be resumed, and a sweep of two trials."""
    root = tmp_path_factory.mktemp("runs")
    run(described(epochs=1), root, "alone", local=True)
    change(RunFolder(root / "alone"), status="interrupted")
    sweep(described(epochs=1, sweep=SWEEP), root, "swept", local=True)
    return root


def raise_format(path: Path) -> None:
    """Give a file the format of a later version."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        assert content["format"] == 1
        path.write_text(json.dumps({**content, "format": 99, "position": "of another kind"}))
        return
    table = pq.read_table(path)
    assert table.schema.metadata[METADATA_KEY] == b"1"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b"99"}), path)


def read_kept_files(folder: Path) -> dict[Path, bytes]:
    """Return the checkpoints and rows of a run, and its files in JSON."""
    files = [path for kind in ("json", "pt", "parquet") for path in folder.rglob(f"[!.]*.{kind}")]
    return {path: path.read_bytes() for path in files if path.parent.name != ".driver"}


READERS: dict[str, Callable[[Path], Any]] = {
    "open_run": open_run,
    "resume": lambda folder: resume(folder),
    "evaluate": lambda folder: open_run(folder).evaluate(),
    "load": lambda folder: open_run(folder).load("last"),
    "checkpoint": lambda folder: open_run(folder).checkpoint("last"),
    "metrics": lambda folder: open_run(folder).metrics,
    "stats": lambda folder: open_run(folder).stats,
    "query": lambda folder: open_run(folder).query("select count(*) from rows"),
    "hook_costs": lambda folder: open_run(folder).hook_costs,
    "init": lambda folder: run(
        described(init={"from": str(folder)}), folder.parent, "later", local=True
    ),
}
VERBS = {
    "show": ["show"],
    "stats": ["stats"],
    "watch": ["watch"],
    "doctor": ["doctor"],
    "report": ["report"],
    "resume": ["resume"],
    "evaluate": ["evaluate"],
    "average": ["average", "--std", "0.1"],
    "compare": ["compare"],
    "note": ["note", "--tag", "a"],
}
MANIFEST = "checkpoints/epoch-0001/manifest.json"
REFUSED = {
    "run.json": [*READERS, *VERBS],
    "source.json": ["resume"],
    "stats/attempt=0/attempt.json": [
        "resume",
        "metrics",
        "stats",
        "query",
        "hook_costs",
        "show",
        "doctor",
        "report",
    ],
    "checkpoints/index.json": ["load", "checkpoint"],
    MANIFEST: ["resume", "load", "checkpoint", "init", "evaluate"],
    "stats.parquet": ["stats", "query", "doctor", "report", "compare"],
    "hooks.parquet": ["hook_costs", "report"],
}


@pytest.mark.parametrize("file", REFUSED)
def test_each_reader_refuses_a_later_format(runs: Path, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(runs / "alone", tmp_path / "alone")
    raise_format(folder / file)
    before = read_kept_files(folder)
    sentence = f"{folder}/{file} has format 99, and this version of Hookyard reads formats up to 1. Upgrade Hookyard"
    for reader in REFUSED[file]:
        if reader in READERS:
            with pytest.raises(UsageError) as refused:
                READERS[reader](folder)
            assert sentence in str(refused.value), reader
        if reader in VERBS:
            verb, *options = VERBS[reader]
            others = [str(runs / "alone")] if verb == "compare" else []
            told = CliRunner().invoke(app, [verb, str(folder), *others, *options])
            assert told.exit_code == 2, (reader, told.output)
            assert told.stderr.splitlines()[-1].startswith(sentence), (reader, told.output)
    assert read_kept_files(folder) == before


def test_a_growing_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = "stats/attempt=0/rank=0/rows-00000.arrow"
    folder = create_run(tmp_path, "alone", "hooks: {}\n")
    files = RankFiles(folder.storage, "stats/attempt=0/rank=0", {"rank": 0, "attempt": 0}, 1.0)
    files.write("rows", {"phase": pa.array(["train"]), "iteration": pa.array([1])}, 1)
    files.sync()
    assert len(open_recorded(folder.storage).read()) == 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_format, "FORMAT", 9)
        start = file_format.make_stream_start(pa.schema([("rank", pa.int64())]))
    folder.storage.write(path, start)
    with pytest.raises(NewerFormat, match=rf"{path} has format 9, and this version"):
        open_recorded(folder.storage)
    with pytest.raises(NewerFormat):
        file_format.read_stream(folder.storage.read(path), path)
    files.close()


@pytest.mark.parametrize("verb", ["show", "stats", "doctor", "resume"])
def test_a_sweep_names_its_trial_of_a_later_format(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    folder = shutil.copytree(runs / "swept", tmp_path / "swept")
    (folder / "trials.jsonl").unlink()
    raise_format(folder / "trials/trial-0001/run.json")
    told = CliRunner().invoke(app, [verb, str(folder)])
    sentence = f"{folder}/trials/trial-0001/run.json has format 99"
    assert sentence in " ".join([*told.output.split(), caplog.text]), told.output


def test_ls_lists_the_runs_beside_one_of_a_later_format(runs: Path, tmp_path: Path) -> None:
    storage = shutil.copytree(runs, tmp_path / "runs")
    raise_format(storage / "alone/run.json")
    listed = CliRunner().invoke(app, ["ls", "--storage", str(storage), "--json"])
    assert listed.exit_code == 0
    assert {row["name"]: row["status"] for row in json.loads(listed.stdout)} == {
        "alone": "newer",
        "swept": "finished",
    }
    assert "run.json has format 99, and this version" in listed.stderr


# Strict JSON


def parse_strictly(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass
class Endless(Points):
    """Has metrics that are no numbers of JSON, and a parameter."""

    limit: float = math.inf
    word: str = "NaN"

    def metrics(self, output: Any, batch: Any) -> dict[str, Tensor]:
        nothing = output.new_zeros(len(output))
        return {
            "none": nothing / 0,
            "most": 1 / nothing,
            "least": -1 / nothing,
            **super().metrics(output, batch),
        }


@dataclass
class Notes(Hook):
    def on_start(self, state: State) -> None:
        state.info.update(
            limit=math.inf, missing=[math.nan, {"word": "NaN", "escaped": "\\NaN"}], format="png"
        )


def test_every_file_is_strict_json_and_read_back_exactly(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "epochs": 1,
        "task": f"{__name__}:Endless",
        "task_args": {"limit": math.inf, "word": "-Infinity"},
    }
    fields["hooks"] = {"json_lines": True, "notes": {"type": f"{__name__}:Notes"}}
    space = {"task_args.limit": {"grid": [-math.inf, 1.0]}}
    settings = {**SWEEP, "metric": "val/most", "space": space}
    done = run(described(**fields), tmp_path, "alone", local=True)
    swept = sweep(described(**fields, sweep=settings), tmp_path, "swept", local=True)

    files = [
        path
        for path in tmp_path.rglob("*")
        if path.suffix in (".json", ".jsonl") and path.is_file()
    ]
    assert {
        "run.json",
        "source.json",
        "info.json",
        "metrics.jsonl",
        "manifest.json",
        "trials.jsonl",
    } <= {path.name for path in files}
    for path in files:
        for text in (
            path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        ):
            parse_strictly(text)

    last = open_run(done.path).metrics.iloc[-1]
    assert (last["val/most"], last["val/least"], math.isnan(last["val/none"])) == (
        math.inf,
        -math.inf,
        True,
    )
    info = RunFolder(done.path).read_metadata().info
    assert (info["limit"], info["missing"][1]) == (math.inf, {"word": "NaN", "escaped": "\\NaN"})
    assert math.isnan(info["missing"][0])
    assert info["format"] == "png"
    assert RunFolder(done.path).read_source().written["task_args"] == {
        "limit": math.inf,
        "word": "-Infinity",
    }
    assert open_sweep(swept.path).trials["config/task_args.limit"].tolist() == [-math.inf, 1.0]

    folder, sweep_folder = str(done.path), str(swept.path)
    for arguments in (
        ["show", folder],
        ["show", sweep_folder],
        ["stats", folder],
        ["stats", folder, "--by", "row"],
        ["compare", folder, folder],
        ["ls", "--storage", str(tmp_path)],
    ):
        told = CliRunner().invoke(app, [*arguments, "--json"])
        assert told.exit_code == 0, (arguments, told.output)
        parse_strictly(told.stdout)


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, "NaN", "\\NaN", "\\\\Infinity", "-Infinity", "nan", ["NaN"]]
)
def test_a_value_is_read_back_as_it_was_written(tmp_path: Path, value: Any) -> None:
    write_json(Storage(tmp_path), "a.json", {"value": value, "nested": {"of": (value, 1.5)}})
    parse_strictly((tmp_path / "a.json").read_text())
    assert read_json(Storage(tmp_path), "a.json", check_mapping, "") == {
        "value": value,
        "nested": {"of": [value, 1.5]},
    }


def test_a_file_with_a_constant_that_json_does_not_have_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"value": NaN}')
    with pytest.raises(DamagedFile, match="JSON has no number NaN"):
        read_json(Storage(tmp_path), "a.json", check_mapping, "")
