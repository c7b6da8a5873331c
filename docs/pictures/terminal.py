"""The frame that `hookyard watch` shows on a terminal."""

import io
import os
import pty
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from docs.pictures.screenshots import EXPERIMENTS, HERE, HOOKYARD


def draw_terminal(folder: Path) -> None:
    """Train on two ranks, and draw what `hookyard watch` shows in the middle of it."""
    path = folder / "digits"
    command = [
        *HOOKYARD,
        "run",
        EXPERIMENTS / "digits.yaml",
        "epochs=200",
        "--engine",
        "gang",
        "--storage",
        folder,
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_reports(path / "metrics.jsonl", 70)
        frame = run_in_terminal([*HOOKYARD, "watch", path, "--once"], columns=112)
    finally:
        run.terminate()
        run.wait()
    text = Text.from_ansi(frame.replace("\r", "").replace(str(path), "runs/digits").strip())
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(text)
    svg = console.export_svg(
        title="hookyard watch runs/digits", theme=DIMMED_MONOKAI, unique_id="watch"
    )
    (HERE / "terminal.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def _wait_for_reports(file: Path, count: int) -> None:
    while not file.is_file() or len(file.read_text().splitlines()) < count:
        time.sleep(0.5)


def run_in_terminal(command: list[str | Path], columns: int) -> str:
    """Return what a command prints on a terminal, with its colors."""
    reader, writer = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    subprocess.run(command, stdout=writer, env=environment, check=True)
    os.close(writer)
    printed = b""
    # Linux reports the end of a pty as an error.
    with suppress(OSError):
        piece = os.read(reader, 65536)
        while piece:
            printed += piece
            piece = os.read(reader, 65536)
    os.close(reader)
    return printed.decode()
