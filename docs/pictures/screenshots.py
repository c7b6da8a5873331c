"""Screenshots of reports and of the live page. They need Chromium."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.browser import open_tab

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


def draw_live_page(folder: Path) -> None:
    """Train a few runs of the starter, and photograph their list, grouped by a parameter."""
    subprocess.run([*HOOKYARD, "init", "spirals"], cwd=folder, check=True)
    for width, rate in ((32, 0.01), (32, 0.03), (128, 0.01), (128, 0.03)):
        name = f"width-{width}-lr-{rate}"
        changes = [f"task_args.width={width}", f"optimizer.lr={rate}", "tags=[paper]", "epochs=5"]
        command = [*HOOKYARD, "run", "spirals.yaml", "--local", "--name", name, *changes]
        subprocess.run(command, cwd=folder, check=True)
    note = ["note", "runs/width-128-lr-0.03", "The candidate for the paper.", "--tag", "candidate"]
    subprocess.run([*HOOKYARD, *note], cwd=folder, check=True)
    serve = [*HOOKYARD, "serve", "runs", "--port", "0"]
    with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with open_tab() as tab:
            tab.show(1200, "light", height=560)
            tab.open(address)
            tab.open(f"{address.partition('?')[0]}?group=task_args.width&sort=best")
            tab.photograph(HERE / "live_page.png")
        server.terminate()
    compress(HERE / "live_page.png")


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
    compress(picture)


def compress(picture: Path) -> None:
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


def shorten(page: str) -> str:
    """Keep the first rows of the table of trials, and leave out what to type to use the best
    one."""
    page = re.sub(r'<section id="best".*?</section>', "", page, flags=re.DOTALL)
    head, body, rest = re.split(r"(<tbody>.*?</tbody>)", page, maxsplit=1, flags=re.DOTALL)
    return head + "".join(re.split(r"(?=<tr)", body)[: 1 + ROWS]) + "</tbody>" + rest
