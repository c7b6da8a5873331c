import io
import os
import sys
from contextlib import redirect_stdout

from orchestrator.engines.printed_lines import MAX_LENGTH, PrintedLines


def test_lines_are_passed_on_once_complete_and_still_printed() -> None:
    lines: list[str] = []
    stdout = io.StringIO()
    with redirect_stdout(stdout):
        printed = PrintedLines(lines.append)
        with printed.collected():
            print("loss", 0.5)
            print("epoch ", end="")
            assert sys.stdout.isatty() is False
        print("of the caller")
        with printed.collected():
            print("1\nof 2\n\nlast", end="")
        assert lines == ["loss 0.5", "epoch 1", "of 2", ""]
        printed.finish()
    assert lines[4:] == ["last"]
    assert stdout.getvalue() == "loss 0.5\nepoch of the caller\n1\nof 2\n\nlast"


def test_a_line_that_is_drawn_again_is_passed_on_as_a_terminal_shows_it_last() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()):
        printed = PrintedLines(lines.append)
        with printed.collected():
            for percent in range(0, 101, 20):
                print(f"{percent}%", end="\r")
            print()
            for percent in range(0, 101, 20):
                print(f"\r{percent}%", end="")
            print("\nwindows\r")
    assert lines == ["100%", "100%", "windows"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()):
        printed = PrintedLines(lines.append)
        with printed.collected():
            for _ in range(MAX_LENGTH):
                print("...", end="")
        printed.finish()
    assert lines == ["." * MAX_LENGTH]


def test_a_forked_process_passes_nothing_on() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()):
        printed = PrintedLines(lines.append)
        with printed.collected():
            process = os.fork()
            print("from both")
            if process == 0:
                os._exit(len(lines))
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lines == ["from both"]
