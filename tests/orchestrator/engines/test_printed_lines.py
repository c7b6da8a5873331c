import io
import os
import sys
from contextlib import redirect_stdout
from typing import TextIO

from orchestrator.engines.printed_lines import MAX_LENGTH, PrintedLines


def test_lines_are_passed_on_once_complete_and_still_printed() -> None:
    lines: list[str] = []
    stdout = io.StringIO()
    with redirect_stdout(stdout):
        with PrintedLines(lines.append).collect():
            print("loss", 0.5)
            print("epoch ", end="")
            assert sys.stdout.isatty() is False
            assert lines == ["loss 0.5"]
            sys.stdout.writelines(["1\nof ", "2\n"])
            print("\nlast", end="")
            assert lines == ["loss 0.5", "epoch 1", "of 2", ""]
        print(" of all")
    assert lines[4:] == ["last"]
    assert stdout.getvalue() == "loss 0.5\nepoch 1\nof 2\n\nlast of all\n"


class Copy(io.StringIO):
    """A stdout that a hook puts around the current one, to keep a copy."""

    def __init__(self, stdout: TextIO) -> None:
        super().__init__()
        self.stdout = stdout

    def write(self, text: str) -> int:
        self.stdout.write(text)
        return super().write(text)


def test_stdout_of_a_hook_stays_in_place() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()):
        with PrintedLines(lines.append).collect():
            copy = Copy(sys.stdout)
            sys.stdout = copy
            print("one")
        print("two")
    assert copy.getvalue() == "one\ntwo\n"
    assert lines[:1] == ["one"]


def test_a_line_that_is_drawn_again_is_passed_on_as_a_terminal_shows_it_last() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()), PrintedLines(lines.append).collect():
        for percent in range(0, 101, 20):
            print(f"{percent}%", end="\r")
        print()
        for percent in range(0, 101, 20):
            print(f"\r{percent}%", end="")
        print("\nwindows\r")
    assert lines == ["100%", "100%", "windows"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()), PrintedLines(lines.append).collect():
        for _ in range(MAX_LENGTH):
            print("...", end="")
    assert lines == ["." * MAX_LENGTH]


def test_a_forked_process_passes_nothing_on() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()), PrintedLines(lines.append).collect():
        process = os.fork()
        print("from both")
        if process == 0:
            os._exit(len(lines))
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lines == ["from both"]
