"""Every verb on runs whose files were harmed: a result or an error of ours, and what is left out is
said."""

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import Run, open_run, resume, run
from orchestrator.cli import app
from orchestrator.disk.rows import rank_table
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.storage import local_files
from tests.tasks import described

VERBS = ("ls", "show", "stats", "report", "watch", "compare", "doctor")
JSON_FILES = (
    "run.json",
    "source.json",
    "metrics.jsonl",
    "stats/attempt=0/attempt.json",
    "checkpoints/epoch-0001/manifest.json",
    "checkpoints/index.json",
)


OTHERS: tuple[Any, ...] = (None, 5, -1, 0.5, True, "x", "", [], [5], {}, {"x": 5})


def json_damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a JSON text without each of its keys, and with another value; of JSON Lines, change the
    last line."""
    *before, last = (
        data.decode().strip().split("\n") if data.strip().count(b"}\n{") else [data.decode()]
    )
    for what, value in _changed(json.loads(last)):
        yield what, "\n".join([*before, json.dumps(value), ""]).encode()


def _changed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items)[:40]:
        if isinstance(value, dict):
            yield f"without {path}.{key}", {name: one for name, one in value.items() if name != key}
        for other in OTHERS:
            yield f"{path}.{key} = {other!r}", _with(value, key, other)
        for what, changed in _changed(inner, f"{path}.{key}"):
            yield what, _with(value, key, changed)


def _with(value: Any, key: Any, item: Any) -> Any:
    again = value.copy()
    again[key] = item
    return again


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed in its second epoch, after a checkpoint."""
    root = tmp_path_factory.mktemp("runs")
    hooks = {
        "breaks": {"type": "tests.tasks:Breaks", "iteration": 12},
        "checkpoint": {"every": 1, "best": "val/accuracy"},
    }
    with pytest.raises(RunError):
        run(described(hooks=hooks), root, "cut", local=True)
    return root / "cut"


@pytest.fixture
def cut(failed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(failed, tmp_path / "runs/cut")


def call(verb: str, folder: Path, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb on a run; raises what is no error of ours."""
    arguments = {
        "ls": ["ls", "--storage", str(folder.parent)],
        "report": ["report", str(folder), "--output", str(folder.parent / "page.html")],
        "watch": ["watch", str(folder), "--once"],
        "compare": ["compare", str(folder), str(folder)],
    }
    result = CliRunner().invoke(app, [*arguments.get(verb, [verb, str(folder)]), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", JSON_FILES)
def test_changed_json_never_causes_a_traceback(cut: Path, name: str) -> None:
    file = cut / name
    ways = [*json_damages(file.read_bytes())]
    samples = random.Random(name).sample(ways, int(os.environ.get("HOOKYARD_FUZZ", 4)))
    for verb, (_, changed) in zip(cycle(VERBS), samples, strict=False):
        file.write_bytes(changed)
        call(verb, cut)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("run.json", b"", "run.json is damaged: it is empty"),
        ("run.json", b"[" * 100_000, "run.json is damaged: "),
        ("run.json", b"5", "run.json is damaged: input should be"),
        (
            "run.json",
            b'{"name": "cut", "status": "failed"}',
            "run.json is damaged: it has no `started`",
        ),
        (
            "run.json",
            b'{"name": "cut", "status": "failed", "started": "2026-01-01", "continued_from": {"run": 5}}',
            "`continued_from.run`: input should be a valid string, got 5",
        ),
        ("experiment.yaml", b"\xff\xfe", "experiment.yaml is damaged: 'utf-8' codec"),
        ("experiment.yaml", b"", "experiment.yaml is damaged: it is empty"),
        ("experiment.yaml", b"hooks: 5", "experiment.yaml is damaged: `hooks`: input should be"),
        (
            "stats/attempt=0/attempt.json",
            b"[]",
            "stats/attempt=0/attempt.json is damaged: input should be",
        ),
    ],
)
def test_error_names_the_damaged_file_and_the_damage(
    cut: Path, name: str, data: bytes, said: str
) -> None:
    (cut / name).write_bytes(data)
    code, out, told = call("show", cut)
    assert (code, out) == (1, "")
    assert told.startswith(f"{cut}/")
    assert said in told
    assert "Restore it from a backup" in told


def test_ls_lists_damaged_and_intact_runs(cut: Path) -> None:
    other = shutil.copytree(cut, cut.parent / "other")
    (other / "run.json").write_bytes(b"{")
    code, out, told = call("ls", cut)
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["other", "damaged"],
        ["cut", "run", "failed"],
    ]
    assert f"{other}/run.json is damaged" in told


def test_damaged_line_is_skipped_with_a_warning(
    cut: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = cut / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(f"5\n{whole}")
    assert "1 report," in call("show", cut)[1]
    assert f"{file} is damaged: line 1 is left out: input should be" in caplog.text
    caplog.clear()
    file.write_text(whole + whole[:20])
    assert "1 report," in call("show", cut)[1]
    assert caplog.text == ""


def test_index_cannot_name_files_outside_its_folder(cut: Path) -> None:
    (cut / "checkpoints/index.json").write_text(
        json.dumps({"owners": {"run": ["../../precious"]}, "labels": {}})
    )
    code, _, told = call("resume", cut)
    assert code != 0
    assert (
        "index.json is damaged: it names '../../precious', which lies outside of its folder" in told
    )


def test_resume_skips_a_damaged_checkpoint_with_a_warning(cut: Path, tmp_path: Path) -> None:
    two = shutil.copytree(cut / "checkpoints/epoch-0001", cut / "checkpoints/epoch-0002")
    manifest = json.loads((two / "manifest.json").read_text())
    manifest["position"]["step"] += 1
    (two / "manifest.json").write_text(json.dumps(manifest))
    (two / "model.pt").write_bytes(b"")
    code, _, told = call("resume", cut)
    assert code == 1  # the hook breaks again
    for text in (told, (cut / "log.txt").read_text()):
        assert f"checkpoint {two}: model.pt is damaged: it has 0 bytes" in text
        assert "Resumed from epoch-0001" in text


def test_missing_file_is_reported_once_in_a_command(
    cut: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cut / "stats/attempt=0/attempt.json").unlink()
    call("report", cut)
    assert caplog.text.count("attempt.json is missing") == 1


def test_missing_best_checkpoint_is_explained_by_the_lack_of_any(cut: Path) -> None:
    shutil.rmtree(cut / "checkpoints")
    code, _, told = call("evaluate", cut)
    assert (code, told) == (
        2,
        f"no checkpoint in {cut}/checkpoints: none was saved, or all were removed\n",
    )


def test_resume_needs_an_intact_checkpoint_or_from_start(cut: Path) -> None:
    (cut / "checkpoints/epoch-0001/model.pt").write_bytes(b"")
    code, out, told = call("resume", cut)
    assert (code, out) == (2, "")
    assert "none of the checkpoints in" in told
    assert (
        f"hookyard resume {cut} --from-start restarts it, and discards these checkpoints and its 1 report, up to"
        " step 7" in told
    )
    assert json.loads((cut / "run.json").read_text())["status"] == "failed"
    result = CliRunner().invoke(app, ["resume", str(cut), "--from-start"])
    assert "Started from scratch (no checkpoint) with 1 rank on " in result.stderr


def test_resume_with_a_damaged_index_starts_nothing(cut: Path) -> None:
    (cut / "checkpoints/index.json").write_bytes(b"{")
    code, out, told = call("resume", cut)
    assert (code, out) == (2, "")
    assert "index.json is damaged" in told
    assert len(open_run(cut).folder.read_attempts()) == 1


@pytest.mark.parametrize("refused", ["run.json", "source.json"])
def test_full_disk_before_a_resume_exits_with_2(
    cut: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    replace = os.replace

    def full(source: object, target: object) -> None:
        if str(target).endswith(refused):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(str(source), str(target))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        code, out, told = call("resume", cut)
    assert (code, out) == (2, "")
    assert (
        f"{refused}: No space left on device. The disk is full, or has room for no more files: make room"
        in told
    )
    assert told.endswith("Nothing was started.\n")
    assert "Resumed from epoch-0001" in call("resume", cut)[2]


@pytest.mark.parametrize("name", ["stats", "checkpoints"])
def test_file_in_place_of_a_folder_is_an_error(cut: Path, name: str) -> None:
    shutil.rmtree(cut / name)
    (cut / name).touch()
    for verb in ("stats", "resume") if name == "stats" else ("resume",):
        code, _, told = call(verb, cut)
        assert code == (1 if verb == "stats" else 2)
        assert f"{cut / name}: " in told
        assert "A file has the name of a folder: move it away" in told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return valid_rows(
        run(described(epochs=2, hooks=LASTING), tmp_path_factory.mktemp("runs"), "cut", local=True)
    )


def valid_rows(done: Run) -> list[tuple[Any, ...]]:
    return sorted(
        done.stats[["phase", "epoch", "iteration", "loss"]].itertuples(index=False, name=None)
    )


LASTING = {"checkpoint": {"every": 1, "best": "val/accuracy"}}


@pytest.mark.parametrize("lasting", [False, True], ids=["one", "all after it"])
@pytest.mark.parametrize(
    "number", random.Random(15).sample(range(1, 130), int(os.environ.get("HOOKYARD_FUZZ", 2)))
)
def test_run_recovers_from_any_refused_file_operation(
    undisturbed: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    lasting: bool,
) -> None:
    refusal, folder, calls = (
        random.Random(number).choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES]),
        tmp_path / "cut",
        count(1),
    )
    telling = local_files.raising_storage_errors

    @contextmanager
    def refusing(place: object, *, keeps_missing: bool = False) -> Iterator[None]:
        with telling(place, keeps_missing=keeps_missing):
            call = next(calls)
            if call == number or (lasting and call > number):
                raise OSError(refusal, os.strerror(refusal))
            yield

    failure: HookyardError | None = None
    with monkeypatch.context() as patched:
        for module in (local_files, rank_table):
            patched.setattr(module, "raising_storage_errors", refusing)
        try:
            run(described(epochs=2, hooks=LASTING), tmp_path, "cut", local=True)
        except HookyardError as error:
            failure = error
    if failure is not None:
        assert f"{folder}" in str(failure)
        assert f"{os.strerror(refusal)}. " in str(failure)
    assert isinstance(failure, UsageError) != (folder / "run.json").exists()
    if isinstance(failure, UsageError):
        done = run(described(epochs=2, hooks=LASTING), tmp_path, "cut", local=True)
    else:
        done = open_run(folder) if open_run(folder).status == "finished" else resume(folder)
    assert valid_rows(done) == undisturbed
