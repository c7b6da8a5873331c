"""Runs a page as its reader would: writes its files, types its commands, and executes its code."""

import ast
import io
import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

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
    "tensorboard": "serves until it is interrupted",
    "hookyard submit": "needs a Ray cluster with a job server, or Slurm",
    "hookyard status": "needs a Ray cluster with a job server, or Slurm",
    "hookyard logs": "needs a Ray cluster with a job server, or Slurm",
    "hookyard stop": "needs a Ray cluster with a job server, or Slurm",
}
"""Why commands that begin with these words are not run, and their output not compared."""

_SHELL = re.compile(r"[|<>&;$`*]|\bcd\b")
"""What only a shell understands."""


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
        words = shlex.split(command, comments=True)
        if words[0] == "hookyard" and not _SHELL.search(command):
            exit_code, printed = _call(words[1:])
        else:
            exit_code, printed = _run_in_shell(command)

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

        difference = find_difference(expected, printed)
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


def _call(words: list[str]) -> tuple[int, str]:
    """Call `hookyard` in this process, which saves the seconds of importing torch."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(WIDTH)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


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
