"""What nobody reads any more is no failure of what is done."""

from __future__ import annotations

import os
import sys

import pytest

from orchestrator.cli.errors import Unbroken
from orchestrator.terminal.display import TerminalDisplay, say


def test_a_stream_without_a_reader_takes_all_and_keeps_none() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stream:
        unbroken = Unbroken(stream)
        for _ in range(2):
            assert unbroken.write("x" * 100_000) == 100_000
            unbroken.flush()
    assert unbroken.encoding == stream.encoding


def test_a_display_that_nobody_reads_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(os.dup(writes), "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", Unbroken(stream))
        with TerminalDisplay() as display:
            display.line("one")
            display.line("two")
        say("three")
    os.close(writes)
