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
from orchestrator.cli.errors import Subcommands
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            ["stats", "runs/x", "--by", "ranks"],
            "--by must be one of trial, rank, node, hook, phase, span, row, got 'ranks' (did you mean 'rank'?)."
            " See hookyard stats --help",
        ),
        (["reprot"], "no command 'reprot' (did you mean 'report'?). See hookyard --help"),
        (["trian"], "no command 'trian' (did you mean 'run'?). See hookyard --help"),
        (["list"], "no command 'list' (did you mean 'ls'?). See hookyard --help"),
        (["run"], "CONFIG is missing. See hookyard run --help"),
        (["samples", "runs/x"], "--where is missing. See hookyard samples --help"),
        (
            ["ls", "--storrage", "x"],
            "no flag --storrage (did you mean '--storage'?). See hookyard ls --help",
        ),
        (
            ["run", "x.yaml", "--epochs", "3"],
            "no flag --epochs; to change the experiment, write epochs=3. See hookyard run --help",
        ),
        (
            ["sweep", "x.yaml", "--optimizer.lr=0.1", "--local"],
            "no flag --optimizer.lr; to change the experiment, write optimizer.lr=0.1."
            " See hookyard sweep --help",
        ),
        (
            ["verify", "--batch-size", "--json", "x.yaml"],
            "no flag --batch-size; to change the experiment, write batch_size=VALUE."
            " See hookyard verify --help",
        ),
        (
            ["run", "x.yaml", "--epoch", "3"],
            "no flag --epoch; to change the experiment, write epochs=3. See hookyard run --help",
        ),
        (["verify", "x.yaml", "--local"], "no flag --local. See hookyard verify --help"),
        (["ls", "--tag"], "--tag needs a value. See hookyard ls --help"),
        (["run", "x.yaml", "--local=3"], "--local takes no value. See hookyard run --help"),
        (["run", "x.yaml", "-e", "3"], "no flag -e. See hookyard run --help"),
        (["resume", "runs/x", "--epochs", "3"], "no flag --epochs. See hookyard resume --help"),
        (["--verson"], "no flag --verson (did you mean '--version'?). See hookyard --help"),
        (
            ["resume", "runs/x", "--workers", "x"],
            "--workers must be an integer. See hookyard resume --help",
        ),
        (
            ["replay", "runs/x", "--iteration", "0"],
            "--iteration must be at least 1. See hookyard replay --help",
        ),
        (
            ["resume", "runs/x", "epochs=8"],
            "unexpected argument: epochs=8. To continue a run with other values:"
            " hookyard run RUN@last epochs=8. See hookyard resume --help",
        ),
        (
            ["show", "runs/x", "runs/y"],
            "unexpected argument: runs/y. See hookyard show --help",
        ),
        (
            ["ls", "--storage", ""],
            "the path of a run or of a storage is empty; write . for this folder",
        ),
        (
            ["show", "runs/x", "--yaml", "--json"],
            "--yaml and --json cannot be combined; leave out one of them",
        ),
        (
            ["stats", "runs/x", "--json", "--format", "csv"],
            "--json and --format csv contradict each other; leave out one of them",
        ),
        (["evaluate", "runs/x", "--name", "y"], "no flag --name. See hookyard evaluate --help"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(call: list[str], message: str) -> None:
    result = CliRunner().invoke(app, call)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{message}\n")
