"""Make the pictures of the docs from sweeps and runs, or draw them: `python docs/pictures/make.py
[NAME ...]`.

Needs Chromium for the reports. The pictures are written beside this file.
"""

import io
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

sys.path.append(str(Path(__file__).parents[2]))

from docs.pictures.svg import BLUE, GREEN, GREY, INK, ORANGE, PALE, Figure
from orchestrator.experiment.sections.schedulers.asha import Asha, AshaRule
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.search.race import RacingTrials
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


def draw_rungs(folder: Path) -> None:
    """Draw trials that ASHA stops at its rungs, by its own rule on simulated curves."""
    reports = 9
    settings = Asha(grace_period=1, reduction_factor=3)
    rule = AshaRule(settings, seed=0)
    figure = Figure("Trials that ASHA stops at rungs of 1, 3 and 9 reports", 670, 300)
    left, bottom, height = 60, 250, 230
    step = 580 / reports

    def place(report: float, score: float) -> tuple[float, float]:
        return left + step * report, bottom - height * score

    for number, rung in enumerate((1, 3, 9)):
        figure.line([place(rung, 0), place(rung, 1)], PALE, width=10)
        figure.text(*place(rung, -0.09), f"rung {number + 1}", GREY, anchor="middle", size=12)
    figure.line([place(0, 1), place(0, 0), place(reports, 0)], GREY)
    for report in range(1, reports + 1):
        figure.text(*place(report, -0.17), str(report), INK, anchor="middle", size=12)
    figure.text(*place(4.5, -0.25), "reports", INK, anchor="middle")
    figure.text(left - 50, bottom - height + 10, "metric")

    limits_and_rates = (
        (0.9, 1.9),
        (0.42, 1.2),
        (0.66, 0.9),
        (0.35, 1.2),
        (0.78, 2.6),
        (0.7, 0.8),
        (0.5, 1.2),
        (0.98, 1.6),
        (0.6, 0.7),
    )
    for trial, (limit, rate) in enumerate(limits_and_rates):
        scores = {
            report: limit * (1 - math.exp(-report / rate)) for report in range(1, reports + 1)
        }
        points = [place(0, 0)]
        for report, score in scores.items():
            points.append(place(report, score))
            if rule.should_stop(trial, report, score) and report < reports:
                figure.line(points, GREY)
                figure.cross(*points[-1], ORANGE)
                break
        else:
            figure.line(points, BLUE, width=2)
            figure.dot(*points[-1], BLUE)
    figure.write(HERE / "rungs.svg")


def draw_race(folder: Path) -> None:
    """Draw which trials a race runs, by its own rule on simulated results."""
    repeats = 5
    means = (0.93, 0.96, 0.9, 0.955, 0.88, 0.94)
    noise = (0.004, -0.006, 0.007, -0.003, 0.001)
    settings = SweepSettings.model_validate(
        {
            "metric": "val/accuracy",
            "search": "grid",
            "repeats": repeats,
            "scheduler": "race",
            "space": {"optimizer.lr": {"grid": list(means)}},
        }
    )
    race = RacingTrials(settings, seed=0, previous={})
    figure = Figure("Trials of six configurations that a race runs or skips", 600, 300)
    for seed in range(repeats):
        figure.text(200 + 80 * seed, 12, f"seed {seed}", GREY, anchor="middle", size=12)
    results = {}
    while (suggested := race.suggest()) is not None:
        number = suggested["number"]
        configuration, seed = divmod(number, repeats)
        result = means[configuration] + noise[(seed + configuration) % repeats]
        results[number] = result
        race.record_report(number, {settings.metrics[0]: result})
        race.record_end(number, {settings.metrics[0]: result})

    for configuration in range(len(means)):
        y = 28 + 44 * configuration
        figure.text(0, y + 20, f"configuration {configuration}")
        for seed in range(repeats):
            number = configuration * repeats + seed
            x = 166 + 80 * seed
            if number in results:
                order = list(results).index(number) + 1
                color = GREY if configuration in race.eliminated else BLUE
                figure.box(x, y, 68, 30, color, f"{results[number]:.3f}")
                figure.text(x + 66, y + 42, f"{order}.", INK, anchor="end", size=12)
            else:
                figure.box(x, y, 68, 30, "#eff2f5")
                figure.text(x + 34, y + 19, "skipped", GREY, anchor="middle", size=11)
    figure.write(HERE / "race.svg")


def draw_shared_training(folder: Path) -> None:
    """Draw a leader that trains, and followers that reuse its training."""
    figure = Figure(
        "A leader trains, and two followers reuse its weights after each epoch", 660, 290
    )
    lanes = ("leader: decay 0", "follower: decay 0.9", "follower: decay 0.99")
    for lane, name in enumerate(lanes):
        figure.text(0, 44 + 90 * lane, name)
    for epoch in range(3):
        x = 150 + 172 * epoch
        figure.text(x + 45, 12, f"epoch {epoch + 1}", GREY, anchor="middle", size=12)
        figure.box(x, 24, 90, 32, BLUE, "train")
        figure.box(x + 96, 24, 30, 32, GREEN, "val")
        for lane in (2, 1):
            y = 24 + 90 * lane
            figure.line([(x + 45, 58), (x + 45, y - 1)], GREY, arrow=True)
            figure.box(x, y, 90, 32, ORANGE, "average")
            figure.box(x + 96, y, 30, 32, GREEN, "val")
    figure.text(150, 270, "The weights after each step go to every trial's own average.", GREY)
    figure.write(HERE / "shared_training.svg")


def draw_repeats(folder: Path) -> None:
    """Draw the results of five seeds of three configurations, with means and intervals."""
    results = (
        (0.941, 0.945, 0.939, 0.947, 0.943),
        (0.92, 0.931, 0.952, 0.924, 0.933),
        (0.905, 0.912, 0.899, 0.908, 0.901),
    )
    student_t = 2.776  # the quantile of 97.5% for five values
    figure = Figure("Results, means and intervals of three configurations", 600, 190)

    def place(value: float) -> float:
        return 130 + (value - 0.89) * 6500

    for row, values in enumerate(results):
        y = 24 + 46 * row
        half = student_t * stdev(values) / math.sqrt(len(values))
        mean = fmean(values)
        figure.text(0, y + 5, f"configuration {row}")
        figure.line([(place(mean - half), y), (place(mean + half), y)], PALE, width=12)
        figure.line([(place(mean), y - 9), (place(mean), y + 9)], INK, width=2)
        for value in values:
            figure.dot(place(value), y, ORANGE if value == max(map(max, results)) else BLUE)
    figure.line([(place(0.89), 150), (place(0.96), 150)], GREY)
    for value in (0.9, 0.92, 0.94, 0.96):
        figure.text(place(value), 168, f"{value}", INK, anchor="middle", size=12)
    figure.text(place(0.925), 188, "val/accuracy", INK, anchor="middle")
    figure.write(HERE / "repeats.svg")


def draw_timeline(folder: Path) -> None:
    """Draw a run that is killed and resumed: attempts, epochs, checkpoints and rows."""
    epoch, iterations = 150, 6
    width = epoch / iterations
    left = 110
    killed = 16
    figure = Figure(
        "A run is killed after 16 iterations, and a second attempt continues at the checkpoint"
        " of epoch 2, after 12",
        700,
        250,
    )

    def draw_rows(first: int, last: int, y: float, color: str) -> None:
        for iteration in range(first, last):
            figure.box(left + width * iteration + 2, y, width - 4, 22, color)

    for number in range(3):
        x = left + epoch * number
        figure.line([(x, 22), (x, 196)], PALE)
        figure.text(x + epoch / 2, 14, f"epoch {number + 1}", GREY, anchor="middle", size=12)
    figure.line([(left + 3 * epoch, 22), (left + 3 * epoch, 196)], PALE)

    figure.text(0, 52, "attempt 0")
    draw_rows(0, 12, 36, BLUE)
    draw_rows(12, killed, 36, GREY)
    kill = left + width * killed + 10
    figure.cross(kill, 47, ORANGE)
    figure.text(kill, 34, "killed", ORANGE, anchor="middle")
    superseded = left + width * 14
    figure.text(superseded, 74, "superseded rows", GREY, anchor="middle", size=12)

    figure.text(0, 112, "checkpoints")
    for number in (1, 2, 3):
        x = left + epoch * number
        figure.dot(x, 108, GREEN)
        figure.text(x - 8, 112, f"epoch-{number:04}", GREEN, anchor="end", size=12)

    figure.text(0, 162, "attempt 1")
    draw_rows(12, 18, 146, BLUE)
    start = left + width * 12
    figure.line([(start, 114), (start, 142)], GREEN, arrow=True)
    figure.text(start - 8, 162, "resumed", GREEN, anchor="end", size=12)

    figure.line([(left, 200), (left + 3 * epoch + 70, 200)], GREY, arrow=True)
    figure.text(left, 218, "position in the training", GREY, size=12)
    figure.text(left, 240, "run.stats holds the blue rows: each iteration exactly once.")
    figure.write(HERE / "timeline.svg")


def draw_iteration(folder: Path) -> None:
    """Draw one iteration of two ranks as bars of spans, of which rank 1 is slow to load data."""
    spans = {
        "data_wait_s": GREEN,
        "forward_s": BLUE,
        "loss_s": "#54aeff",
        "backward_s": "#0a3069",
        "all_reduce_wait_s": ORANGE,
        "optimizer_s": "#8250df",
        "hooks_s": GREY,
    }
    ranks = ((4, 14, 3, 24, 33, 10, 4), (34, 14, 3, 25, 2, 10, 4))
    figure = Figure(
        "One iteration of two ranks: rank 1 loads data slowly, and rank 0 waits", 700, 210
    )
    left, scale = 60, 6.8
    for rank, lengths in enumerate(ranks):
        y = 20 + 56 * rank
        x: float = left
        figure.text(0, y + 21, f"rank {rank}")
        for (name, color), length in zip(spans.items(), lengths, strict=True):
            wide = scale * length
            figure.box(x, y, wide - 1, 32, color, name if wide > 80 else "")
            x += wide
    meeting = left + scale * 78
    figure.line([(meeting, 10), (meeting, 118)], INK, dashed=True)
    figure.text(meeting, 134, "gradients averaged", anchor="end", size=12)
    end = left + scale * sum(ranks[0])
    figure.line([(left, 150), (end, 150)], GREY, arrow=True)
    figure.text(
        (left + end) / 2, 168, "step_s, the same for both ranks", GREY, anchor="middle", size=12
    )

    x = left
    for name, color in spans.items():
        figure.box(x, 190, 10, 10, color)
        figure.text(x + 14, 199, name, size=11)
        x += 30 + 6.4 * len(name)
    figure.write(HERE / "iteration.svg")


def draw_growth(folder: Path) -> None:
    """Draw how the time of three operations grows with rows or trials, as docs/explanations/limits
    tells it."""
    measured = {
        "end of a killed run, by rows": (BLUE, ((1e6, 3.6), (1e7, 10), (1e8, 28))),
        "doctor, by rows": (ORANGE, ((1e8, 43), (7.7e8, 360))),
        "table of trials, by trials": (GREEN, ((1e4, 1), (1e5, 10))),
    }
    figure = Figure("Seconds by number of rows or trials, both on logarithmic scales", 600, 270)

    def place(number: float, seconds: float) -> tuple[float, float]:
        return 50 + 105 * (math.log10(number) - 4), 220 - 70 * math.log10(seconds)

    figure.line([place(1e4, 1000), place(1e4, 1), place(1e9, 1)], GREY)
    for exponent in range(4, 10):
        x, y = place(10**exponent, 1)
        figure.text(x, y + 18, f"{10**exponent:,}", INK, anchor="middle", size=11)
    for seconds in (1, 10, 100, 1000):
        x, y = place(1e4, seconds)
        figure.text(x - 6, y + 4, f"{seconds} s", INK, anchor="end", size=11)
    for name, (color, points) in measured.items():
        places = [place(*point) for point in points]
        figure.line(places, color, width=2)
        for x, y in places:
            figure.dot(x, y, color)
        is_left = places[-1][0] < 200
        offset = 10 if is_left else -10
        anchor = "start" if is_left else "end"
        figure.text(places[-1][0] + offset, places[-1][1] - 4, name, color, anchor=anchor, size=12)
    figure.text(place(10**6.5, 1)[0], 262, "rows or trials", INK, anchor="middle")
    figure.write(HERE / "growth.svg")


def draw_storage(folder: Path) -> None:
    """Draw a laptop, the head and the nodes of a cluster, and the storage that they share."""
    figure = Figure(
        "A laptop sends a run to the head of a cluster, whose driver and ranks write to one storage",
        700,
        300,
    )
    figure.box(0, 60, 110, 60, GREY, "laptop")
    figure.text(55, 140, "submit, watch, stats", GREY, anchor="middle", size=12)

    figure.line([(180, 10), (700, 10), (700, 190), (180, 190), (180, 10)], PALE)
    figure.text(690, 28, "cluster", GREY, anchor="end", size=12)
    figure.text(270, 50, "head", GREY, anchor="middle", size=12)
    figure.box(210, 60, 120, 60, INK, "driver")
    for node in range(2):
        y = 40 + 78 * node
        figure.text(572, y - 5, f"node {node + 1}", GREY, anchor="middle", size=12)
        for place in range(2):
            figure.box(464 + 112 * place, y, 104, 44, BLUE, f"rank {2 * node + place}")
        figure.line([(330, 90), (458, y + 22)], GREY, arrow=True)
    figure.text(345, 70, "starts ranks", GREY, size=12)
    figure.line([(110, 90), (204, 90)], GREY, arrow=True)
    figure.text(118, 82, "a run", GREY, size=12)

    figure.box(180, 250, 520, 44, GREEN, "storage: a shared folder or a bucket")
    figure.line([(270, 120), (270, 244)], GREEN, arrow=True)
    figure.text(278, 222, "reports, log", GREEN, size=12)
    figure.line([(572, 162), (572, 244)], GREEN, arrow=True)
    figure.text(564, 222, "rows, checkpoints", GREEN, anchor="end", size=12)
    figure.line([(180, 272), (55, 272), (55, 150)], GREEN, arrow=True)
    figure.text(64, 264, "tables", GREEN, size=12)
    figure.write(HERE / "storage.svg")


def draw_crashes(folder: Path) -> None:
    """Draw what is trained again if a rank dies, the driver dies, or a warning comes first."""
    figure = Figure(
        "A lost rank or driver costs the steps since the last checkpoint, and a warning none",
        700,
        230,
    )
    left, checkpoint, end = 130, 300, 420
    lanes = (
        ("a rank dies", "replaced by the driver", 460),
        ("the driver dies", "hookyard resume", 560),
        ("a warning comes", "continues elsewhere", 460),
    )
    for number, (title, way, start) in enumerate(lanes):
        y = 20 + 64 * number
        warned = number == 2
        saved = end if warned else checkpoint
        figure.text(0, y + 16, title)
        figure.box(left, y, saved - left - 2, 22, BLUE)
        if not warned:
            figure.box(saved, y, end - saved - 2, 22, GREY, "trained again")
            figure.cross(end + 4, y + 11, ORANGE)
        figure.dot(checkpoint, y + 30, GREEN)
        if warned:
            figure.dot(end, y + 30, GREEN)
        figure.line([(end + 12, y + 11), (start - 4, y + 11)], GREY, dashed=True)
        figure.box(start, y, 700 - start, 22, BLUE)
        figure.text(start, y + 38, way, GREY, size=12)

    figure.text(checkpoint, 66, "checkpoint", GREEN, anchor="end", size=12)
    figure.line([(left, 208), (700, 208)], GREY, arrow=True)
    figure.text(left, 226, "time", GREY, size=12)
    figure.write(HERE / "crashes.svg")


PICTURES = {
    "report": draw_report,
    "first_sweep": draw_first_sweep,
    "live_page": draw_live_page,
    "terminal": draw_terminal,
    "timeline": draw_timeline,
    "iteration": draw_iteration,
    "storage": draw_storage,
    "crashes": draw_crashes,
    "rungs": draw_rungs,
    "race": draw_race,
    "shared_training": draw_shared_training,
    "repeats": draw_repeats,
    "growth": draw_growth,
}


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder))
