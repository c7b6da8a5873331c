"""Make the pictures of the docs from sweeps and runs, or draw them: `python docs/pictures/make.py
[NAME ...]`.

Needs Chromium for the reports. The pictures are written beside this file.
"""

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

HOOKYARD = [sys.executable, "-m", "orchestrator"]
HERE = Path(__file__).parent
EXPERIMENTS = HERE.parents[1] / "experiments"
ROWS = 6
"""Trials in the picture's table."""
SWEEP = """\
base: {base}
name: digits-tuning
epochs: 8
workers: {{count: 1}}
hooks: {{tensorboard: null, progress_bar: null}}
sweep:
  metric: val/accuracy
  trials: 48
  seed: 4
  space:
    hooks.ema.decay: {{fan_out: [0, 0.5, 0.9, 0.99]}}
    optimizer.lr: {{loguniform: [0.003, 1.0]}}
    optimizer.momentum: {{uniform: [0.1, 0.95]}}
    task_args.width: {{choice: [8, 16, 32]}}
"""


def draw_report(folder: Path) -> None:
    """Sweep over the digits, and take a screenshot of the first screen of the report."""
    file = folder / "digits_tuning.yaml"
    file.write_text(SWEEP.format(base=EXPERIMENTS / "digits.yaml"))
    subprocess.run([*HOOKYARD, "sweep", file, "--local", "--storage", folder], check=True)
    photograph_report(folder / "digits-tuning", HERE / "report.png", height=1480)


def draw_first_sweep(folder: Path) -> None:
    """Sweep as the tutorial does, and take a screenshot of the first screen of the report."""
    subprocess.run([*HOOKYARD, "init", "spirals"], cwd=folder, check=True)
    sweep = [*HOOKYARD, "sweep", "spirals_sweep.yaml", "--local"]
    subprocess.run(sweep, cwd=folder, check=True)
    photograph_report(folder / "runs" / "spirals-sweep", HERE / "first_sweep.png", height=1190)


def photograph_report(sweep: Path, picture: Path, height: int) -> None:
    """Write a sweep's report, and take a screenshot of its first screen."""
    page = sweep / "report.html"
    subprocess.run([*HOOKYARD, "report", sweep], check=True)
    page.write_text(shorten(page.read_text()))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size=1200,{height}",
        "--virtual-time-budget=5000",
    ]
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    subprocess.run(
        [chromium, *flags, f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


def shorten(page: str) -> str:
    """Keep the first rows of the table of trials, and leave out what to type to use the best
    one."""
    page = re.sub(r'<section id="best".*?</section>', "", page, flags=re.DOTALL)
    head, body, rest = re.split(r"(<tbody>.*?</tbody>)", page, maxsplit=1, flags=re.DOTALL)
    return head + "".join(re.split(r"(?=<tr)", body)[: 1 + ROWS]) + "</tbody>" + rest


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
        while (
            not (reports := path / "metrics.jsonl").is_file()
            or len(reports.read_text().splitlines()) < 70
        ):
            time.sleep(0.5)
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


def run_in_terminal(command: list[str | Path], columns: int) -> str:
    """Return what a command prints on a terminal, with its colors."""
    reader, writer = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    subprocess.run(command, stdout=writer, env=environment, check=True)
    os.close(writer)
    printed = b""
    try:
        while piece := os.read(reader, 65536):
            printed += piece
    except OSError:  # the end of what a pty has to say
        pass
    os.close(reader)
    return printed.decode()


PICTURES = {
    "report": draw_report,
    "first_sweep": draw_first_sweep,
    "terminal": draw_terminal,
}


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder))
