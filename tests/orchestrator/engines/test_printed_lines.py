import io
import os
import sys
from contextlib import redirect_stdout

from orchestrator.engines.printed_lines import printed_lines_passed_on


def test_lines_are_passed_on_once_complete_and_still_printed() -> None:
    lines: list[str] = []
    stdout = io.StringIO()
    with redirect_stdout(stdout):
        with printed_lines_passed_on(lines.append):
            print("loss", 0.5)
            print("epoch ", end="")
            assert lines == ["loss 0.5"]
            print("1\nof 2")
            assert sys.stdout.isatty() is False
        print("afterwards")
    assert lines == ["loss 0.5", "epoch 1", "of 2"]
    assert stdout.getvalue() == "loss 0.5\nepoch 1\nof 2\nafterwards\n"


def test_a_forked_process_passes_nothing_on() -> None:
    lines: list[str] = []
    with redirect_stdout(io.StringIO()), printed_lines_passed_on(lines.append):
        process = os.fork()
        print("from both")
        if process == 0:
            os._exit(len(lines))
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lines == ["from both"]
