"""Exit codes, messages, and streams that lose their reader."""

import errno
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.cli.commands import Subcommands
from orchestrator.errors import CheckpointError, ConfigError, Problem, RunError, UsageError
from orchestrator.process.streams import PipeSafe, print_line
from orchestrator.storage import Storage
from orchestrator.terminal.display import TerminalDisplay

PROBLEM = Problem("hooks.ema.decay", "is wrong", "x.yaml", 3)


def test_removed_current_folder_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for words in (["ls"], ["show", "runs/line"], ["stats", "runs/line"], ["validate", "line.yaml"]):
        told = CliRunner().invoke(app, words)
        assert (told.exit_code, told.stderr) == (
            2,
            "the current folder was removed; change to another one\n",
        )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("the name is taken"), 2, "the name is taken\n"),
        (ConfigError([PROBLEM, PROBLEM]), 2, "x.yaml:3: hooks.ema.decay: is wrong\n" * 2),
        (RunError("rank 1 died"), 1, "rank 1 died\n"),
        (CheckpointError("it is damaged"), 1, "it is damaged\n"),
        (
            OSError(27, "File too large"),
            1,
            (
                "[Errno 27] File too large. The file is larger than the limit: raise it (ulimit -f), or use"
                " another storage\n"
            ),
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_messages_and_exit_codes(error: BaseException, code: int, said: str) -> None:
    failing = typer.Typer(cls=Subcommands)

    @failing.command()
    def one() -> None:
        raise error

    @failing.command()
    def other() -> None: ...

    result = CliRunner().invoke(failing, ["one"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)
    assert CliRunner().invoke(failing, ["other"]).exit_code == 0


PATHS = {
    "average": "{} --std 0.1",
    "compare": "{0} {0}",
    "doctor": "{} --files",
    "evaluate": "{}@best --local",
    "export-optuna": "{} sqlite:///study.db",
    "ls": "--storage {}",
    "note": "{} text",
    "query": "select --storage {}",
    "replay": "{} --iteration 1",
    "rm": "{} --yes",
    "run": "{}@best --local",
    "samples": "{} --where loss>1",
    "submit": "{} --address http://127.0.0.1:1",
    "watch": "{} --once",
}
"""Arguments of verbs that take more than a path."""
WITHOUT_A_PATH = {"hooks", "init", "logs", "schema", "status", "stop"}


VERBS = {
    command.callback.__name__.replace("_", "-")
    for command in app.registered_commands
    if command.callback
}


@pytest.mark.parametrize("verb", sorted(VERBS - WITHOUT_A_PATH))
def test_path_without_a_run_is_an_error_of_one_line(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text")
    Path("empty").mkdir()
    for path in ("missing", "file", *(["empty"] if verb not in ("ls", "query", "serve") else [])):
        result = CliRunner().invoke(app, [verb, *PATHS.get(verb, "{}").format(path).split()])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), (
            result.output
        )
        assert path in result.stderr


def test_stream_without_a_reader_drops_text() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stream:
        stream_to_nobody = PipeSafe(stream)
        for _ in range(2):
            assert stream_to_nobody.write("x" * 100_000) == 100_000
            stream_to_nobody.flush()
    assert stream_to_nobody.encoding == stream.encoding


def test_display_survives_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(os.dup(writes), "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with TerminalDisplay() as display:
            display.line("one")
            display.line("two")
        print_line("three")
    os.close(writes)


def test_display_survives_a_terminal_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Gone(StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stderr", Gone())
    with TerminalDisplay(Storage(tmp_path)) as display:
        display.line("one")
    print_line("two")
    assert (tmp_path / "log.txt").read_text().endswith(" one\n")
