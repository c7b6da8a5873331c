"""Runs a page as its reader would: writes its files, types its commands, and executes its code."""

import ast
import io
import os
import platform
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
from typer.testing import CliRunner

from orchestrator.cli import app
from tests.docs.blocks import Block, read_blocks, replace_text, write_files
from tests.docs.output import find_difference, refresh

ROOT = Path(__file__).parents[2]
PROMPT = "$ "
WIDTH = 100
"""Columns of the terminal."""

STARTED_RAY = "starting Ray on this machine"
JOINED_RAY = "using the Ray that this process has joined"
"""What a run prints where the tests share one Ray."""

COMMANDS_NOT_RUN = {
    "git clone": "the repository is here",
    "cd": "each page has a folder of its own",
    "pip": "changes the environment of the tests",
    "python -m venv": "what is installed is that of the tests",
    "source": "as above",
    "make": "`make test` would run itself",
    "ssh": "needs another machine",
    "scp": "needs another machine",
    "rsync": "needs another machine",
    "ray": "starts processes that outlive the command",
    "aws": "needs an account",
    "kubectl": "needs a cluster",
    "helm": "needs a cluster",
    "sbatch": "needs Slurm",
    "srun": "needs Slurm",
    "squeue": "needs Slurm",
    "docker": "needs a daemon",
    "mkdir": "each page has a folder of its own",
    "uv": "installs packages from the network",
    "sky": "needs a cloud",
    "export": "as above",
    "tensorboard": "serves until it is interrupted",
    "hookyard serve": "serves until it is interrupted",
    "hookyard submit": "needs a Ray cluster with a job server, or Slurm",
    "hookyard status": "needs a Ray cluster with a job server, or Slurm",
    "hookyard logs": "needs a Ray cluster with a job server, or Slurm",
    "hookyard stop": "needs a Ray cluster with a job server, or Slurm",
}
"""Why commands that begin with these words are not run, and their output not compared."""

COUNTS_VARY = {
    "docs/start/first_sweep.md": "asha stops other trials when other ones are faster",
    "docs/guides/checkpoints.md": "when a run stops early depends on a CPU's rounding",
    "docs/guides/fine_tune.md": "which of many equal epochs is best depends on a CPU's rounding",
}
"""Pages whose plain integers depend on the machine, and why."""

_OPERATORS = "|<>&;"
_SHELL = re.compile(r"[$`*]|\bcd\b")
"""What only a shell understands, apart from operators."""


class PageError(AssertionError):
    """What of a page does not work as it says."""


class PageRunner:
    """One run of a page in a folder, which is the current one.

    With `update`, what the page shows is replaced by what is printed."""

    def __init__(self, folder: Path, update: bool = False) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        """What the page's code has defined."""

        self._folder = folder
        self._update = update
        self._printed: str | None = None
        """What the block before has printed, if it was code."""

    def run(self, page: Path) -> None:
        """Run the blocks of a page in their order. Raise PageError at the first that fails."""
        blocks = read_blocks(page)
        shown = [self._run_block(block) for block in blocks]
        # From the last, because a longer text moves the blocks below it.
        for block, text in reversed([*zip(blocks, shown, strict=True)]):
            if text != block.text:
                replace_text(block, text)

    def _run_block(self, block: Block) -> str:
        """Run a block, and return the text that the page should show."""
        shown = block.text
        if block.file is not None:
            block.write(self._folder)
        elif block.language == "continues":
            write_files(block.page.parent / block.text, self._folder)
        elif block.language == "prepare":
            for command in block.text.splitlines():
                self._type(command.strip(), block, expected="...")
        elif block.language == "console":
            shown = self._run_commands(block)
        elif block.language == "python":
            self._execute(block)
        elif block.language in ("", "text") and block.follows and self._printed is not None:
            shown = self._compare(block.text, self._printed, block, "the code above")
        elif block.text.startswith("#!"):
            pass  # a script for a place that the tests do not have
        elif re.search(r"^(\$ )?(hookyard|python) ", block.text, re.MULTILINE):
            raise PageError(f"{block.place}: commands stand in ```console, after `{PROMPT}`")

        if block.language != "python" or block.file is not None:
            self._printed = None
        return shown

    def _run_commands(self, block: Block) -> str:
        if not block.text.startswith(PROMPT):
            raise PageError(f"{block.place}: the first line of ```console begins with `{PROMPT}`")

        shown = ""
        for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, expected = _split_entry(entry)
            printed = self._type(command, block, expected)
            shown += f"{PROMPT}{command}\n" + (f"{printed}\n" if printed else "")
        return shown

    def _type(self, command: str, block: Block, expected: str) -> str:
        """Run a command, and return what the page should show below it."""
        if "s3://" in command:  # needs a bucket
            return expected
        if any(f"{command} ".startswith(f"{words} ") for words in COMMANDS_NOT_RUN):
            return expected

        self._forget_modules()
        exit_code, printed = _run_command(command)

        printed = self._as_readers_see(printed)
        if exit_code != 0 and expected.strip() in ("", "..."):
            raise PageError(f"{block.place}: `{command}` exits with {exit_code}:\n{printed}")
        return self._compare(expected, printed, block, f"`{command}`")

    def _execute(self, block: Block) -> None:
        """Execute code, and print the value of its last expression as a notebook would."""
        self._forget_modules()
        tree = ast.parse(block.text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        output = io.StringIO()
        wide = pd.option_context("display.width", 150, "display.max_columns", 20)
        with redirect_stdout(output), redirect_stderr(output), wide:
            exec(compile(tree, block.place, "exec"), self.names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, block.place, "eval"), self.names)
                if value is not None:
                    print(value)
        self._printed = self._as_readers_see(output.getvalue())

    def _compare(self, expected: str, printed: str, block: Block, source: str) -> str:
        """Compare what is shown with what was printed, and return what should be shown."""
        fresh = refresh(expected, printed) if self._update else None
        if fresh is not None:
            return fresh

        counts_vary = any(block.page == ROOT / name for name in COUNTS_VARY)
        difference = find_difference(expected, printed, counts_vary=counts_vary)
        if difference is not None:
            raise PageError(
                f"{block.place}: {source}: {difference}\nAll that it prints:\n{printed}"
            )
        return expected

    def _as_readers_see(self, printed: str) -> str:
        """Return the output of somebody on the machine `vm`, whose home is the page's folder, and
        who has no Ray."""
        printed = printed.replace(str(self._folder), "/home/me")
        printed = re.sub(rf"\b{re.escape(platform.node())}\b", "vm", printed)
        return printed.replace(JOINED_RAY, STARTED_RAY)

    def _forget_modules(self) -> None:
        """Forget the modules of the folder, because the page may have changed their files."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(self._folder)):
                del sys.modules[name]


def _split_entry(entry: str) -> tuple[str, str]:
    """Return a command, which a backslash continues on the next line, and its output."""
    lines = entry.splitlines()
    count = 1
    while lines[count - 1].endswith("\\"):
        count += 1
    return "\n".join(lines[:count]), "\n".join(lines[count:])


def _run_command(command: str) -> tuple[int, str]:
    """Run a command without a new process if that is possible, because importing torch takes
    seconds. Return its exit code and what it printed."""
    words = _split_words(command)
    target = words.pop() if words[-2:-1] == [">"] else None
    if target is not None:
        words.pop()
    needs_shell = _SHELL.search(command) or any(not word.strip(_OPERATORS) for word in words)
    if words[0] == "hookyard" and not needs_shell:
        return _call(words[1:], target)
    if words[0] == "python" and words[1] != "-c" and not needs_shell and target is None:
        return _fork(words[1:])
    return _run_in_shell(command)


def _split_words(command: str) -> list[str]:
    """Split a command as a shell does, with its operators as words of their own."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    return list(lexer)


def _call(words: list[str], target: str | None) -> tuple[int, str]:
    """Call `hookyard` in this process, with its output in a file if that is redirected."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(WIDTH)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if target is None:
        return result.exit_code, result.output

    Path(target).write_text(result.stdout)
    return result.exit_code, result.stderr


def _fork(words: list[str]) -> tuple[int, str]:
    """Run `python` with these words in a copy of this process."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            _become_python(words, output.fileno())
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _become_python(words: list[str], output: int) -> NoReturn:
    """Run a file or a module as the main program of this process, and end the process."""
    exit_code: Any = 0
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ["COLUMNS"] = str(WIDTH)
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exit:
        exit_code = exit.code or 0
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    finally:
        sys.stdout.flush()
        os._exit(exit_code)


def _run_in_shell(command: str) -> tuple[int, str]:
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": str(WIDTH),
    }
    done = subprocess.run(
        command,
        shell=True,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout
