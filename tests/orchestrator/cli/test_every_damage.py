"""Each file of a run, a sweep and an evaluation, harmed in each way, under each verb that reads: no
traceback."""

import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import open_run, run, sweep
from orchestrator.cli import app
from orchestrator.storage.omissions import warn_once
from tests.ranks import FORKSERVER
from tests.tasks import described

SPACE = {"metric": "val/accuracy", "mode": "max", "space": {"optimizer.lr": {"grid": [0.1, 0.01]}}}


def _in_a_folders_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


HARMS: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "list": lambda file: file.write_bytes(b"[]"),
    "mapping": lambda file: file.write_bytes(b"{}"),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": lambda file: flip_bit(file),
    "doubled": lambda file: file.write_bytes(file.read_bytes() * 2),
    "folder": _in_a_folders_place,
}


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an evaluation, and a sweep of two trials, that are over."""
    root = tmp_path_factory.mktemp("whole")
    hooks = {"checkpoint": {"every": 1, "best": "val/accuracy"}}
    run(described(epochs=1, hooks=hooks), root, "alone", local=True)
    open_run(root / "alone").evaluate("best", local=True)
    sweep(described(epochs=1, hooks=hooks, sweep=SPACE), root, "swept", local=True)
    return root


def verbs(folder: Path) -> dict[str, list[str]]:
    """The reading verbs with their arguments, on a folder."""
    at = str(folder)
    return {
        "show": ["show", at],
        "ls": ["ls", "--storage", str(folder.parent)],
        "watch": ["watch", at, "--once"],
        "stats": ["stats", at],
        "samples": ["samples", at, "--where", "loss > 0"],
        "compare": ["compare", at, at],
        "doctor": ["doctor", at],
        "files": ["doctor", at, "--files"],
        "report": ["report", at, "--output", str(folder.parent / "page.html")],
        "replay": ["replay", at, "--iteration", "1"],
        "rm": ["rm", at],
    }


def call(words: list[str]) -> tuple[int, str]:
    """Exit code and all that a command says; raises what is no error of ours."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hookyard").addHandler(handler)
    warn_once.cache_clear()  # as in a process of its own
    try:
        result = CliRunner().invoke(app, words)
    finally:
        logging.getLogger("hookyard").removeHandler(handler)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{' '.join(words)} ends in a traceback") from result.exception
    return result.exit_code, "\n".join([result.output, *said])


def files(folder: Path) -> list[str]:
    found = [
        file for file in sorted(folder.rglob("*")) if file.is_file() and ".driver" not in file.parts
    ]
    return [str(file.relative_to(folder)) for file in found]


READS = {
    "show": (
        "run.json",
        "experiment.yaml",
        "metrics.jsonl",
        "attempt.json",
        "manifest.json",
        "index.json",
    ),
    "ls": ("run.json",),
    "watch": ("run.json", "metrics.jsonl", "attempt.json"),
    "stats": ("run.json", "attempt.json", "stats.parquet"),
    "samples": ("run.json", "attempt.json", "stats.parquet"),
    "compare": ("run.json", "metrics.jsonl", "attempt.json", "stats.parquet"),
    "doctor": ("run.json", "attempt.json", "stats.parquet"),
    "report": ("run.json", "metrics.jsonl", "attempt.json", "stats.parquet"),
    "replay": ("run.json", "attempt.json", "stats.parquet"),
    "rm": ("run.json",),
}
"""What each verb reads of a run, and has to name where that is harmed."""


def must_be_named(verb: str, file: str, harm: str) -> bool:
    """Return whether a verb has to name a harmed file."""
    name = file.rpartition("/")[2]
    if name in ("log.txt", "experiment.yaml") and harm not in ("missing", "folder"):
        return False  # people write in them
    if harm == "flipped" and not name.endswith((".pt", ".jsonl")):
        return False  # they have no checksum of each byte
    if harm == "doubled" and name.endswith(".parquet"):
        return False  # its rows are read once
    if verb == "files":
        if name == "trials.jsonl" and harm in ("missing", "folder", "empty", "doubled"):
            return False  # any part of this cache may be missing or repeated
        is_optional = name in ("log.txt", "source.json", "hooks.parquet", "info.json")
        return not (is_optional and harm in ("missing", "folder"))
    others = (
        ("trials/", "evaluations/")
        if verb in ("ls", "watch", "rm", "compare")
        else ("evaluations/",)
    )
    is_read_right = name == "metrics.jsonl" and harm == "doubled"  # its reports are shown twice
    return name in READS[verb] and not file.startswith(others) and not is_read_right


@pytest.mark.parametrize("name", ["alone", "swept"])
def test_every_verb_names_every_damaged_file(whole: Path, tmp_path: Path, name: str) -> None:
    """Each file is damaged under three verbs that read it and one other; the verbs and the kinds of
    damage rotate."""
    readers = [verb for verb in READS if name == "alone" or verb not in ("samples", "replay")]
    harms, others = cycle(HARMS), cycle(readers)
    for place, file in enumerate(file for file in files(whole / name) if "trial-0001" not in file):
        named_by = [
            verb
            for verb in ("files", *readers)
            if any(must_be_named(verb, file, harm) for harm in HARMS)
        ]
        chosen = {named_by[(place + step) % len(named_by)]: None for step in range(3) if named_by}
        for verb in (*chosen, next(others)):
            harm = next(
                harm for harm in harms if verb not in named_by or must_be_named(verb, file, harm)
            )
            folder = shutil.copytree(whole / name, tmp_path / "damaged" / name)
            HARMS[harm](folder / file)
            code, output = call(verbs(folder)[verb])
            assert code in (0, 1, 2), (verb, file, harm)
            if must_be_named(verb, file, harm):
                assert file.rpartition("/")[2] in output, (verb, file, harm, output)
                assert verb != "files" or code == 1, (file, harm)
            shutil.rmtree(tmp_path / "damaged")


def test_intact_files_cause_no_warning(whole: Path) -> None:
    for name in ("alone", "swept"):
        for verb, words in verbs(whole / name).items():
            if verb in ("rm", "replay") or (name, verb) == ("swept", "samples"):
                continue
            code, said = call(words)
            assert code == 0, (name, verb, said)
            assert "damaged" not in said.replace("damaged files", ""), (name, verb, said)


def test_rm_works_on_a_full_disk(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", full)
    for name in ("alone", "swept"):
        folder = shutil.copytree(whole / name, tmp_path / name)
        code, said = call(["rm", str(folder), "--yes"])
        assert (code, folder.exists()) == (0, False), said


def test_evaluation_killed_at_its_start_is_not_damage(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "alone", tmp_path / "alone")
    (begun := folder / "evaluations/epoch-0001-test").mkdir()
    for file in ("experiment.yaml", "source.json"):
        shutil.copy(folder / file, begun)
        assert call(["doctor", str(folder), "--files"])[0] == 0
    shutil.copy(folder / "metrics.jsonl", begun)
    code, said = call(["doctor", str(folder), "--files"])
    assert code == 1
    assert "evaluations/epoch-0001-test/run.json" in said


def test_doctor_of_a_sweep_lists_each_trial(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "swept", tmp_path / "swept")
    shutil.copytree(folder / "trials/trial-0000", folder / "trials/trial-0002")
    (folder / "trials/trial-0002/stats.parquet").write_bytes(b"{}")
    code, said = call(["doctor", str(folder)])
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("trial-")] == [
        ["trial-0000", "finished"],
        ["trial-0001", "finished"],
        ["trial-0002", "damaged"],
    ]


def _run_without_streams(folder: Path) -> None:
    for number in range(3):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]
    os.chdir(folder)
    app(["run", "points.yaml", "--local"])


def test_run_without_standard_streams_finishes(tmp_path: Path) -> None:
    (tmp_path / "points.yaml").write_text("name: points\ntask: tests.tasks:Points\nepochs: 1\n")
    process = FORKSERVER.Process(target=_run_without_streams, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    done = open_run(tmp_path / "runs/points")
    assert (done.status, len(done.reports())) == ("finished", 1)
    assert call(["doctor", str(done.path), "--files"])[0] == 0
