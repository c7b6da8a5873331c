"""Drawings of the life of a run: its iterations, attempts, storage and costs."""

import math

from docs.pictures.svg import BLUE, GREEN, GREY, INK, ORANGE, PALE, Figure


def draw_timeline() -> Figure:
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
    return figure


def draw_iteration() -> Figure:
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
    return figure


def draw_growth() -> Figure:
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
    return figure


def draw_storage() -> Figure:
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
    return figure


def draw_crashes() -> Figure:
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
    return figure
