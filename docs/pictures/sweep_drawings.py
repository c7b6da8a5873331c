"""Drawings of how sweeps choose, stop and share their trials."""

import math
from collections.abc import Collection, Sequence
from statistics import fmean, stdev

from docs.pictures.svg import BLUE, GREEN, GREY, INK, ORANGE, PALE, Figure
from orchestrator.experiment.sections.schedulers.asha import Asha, AshaRule
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.search.race import RacingTrials


def draw_rungs() -> Figure:
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
    return figure


def draw_race() -> Figure:
    """Draw which trials a race runs, by its own rule on simulated results."""
    repeats = 5
    means = (0.93, 0.96, 0.9, 0.955, 0.88, 0.94)
    results, eliminated = _simulate_race(means, repeats)
    order = list(results)
    figure = Figure("Trials of six configurations that a race runs or skips", 600, 300)
    for seed in range(repeats):
        figure.text(200 + 80 * seed, 12, f"seed {seed}", GREY, anchor="middle", size=12)

    for configuration in range(len(means)):
        y = 28 + 44 * configuration
        figure.text(0, y + 20, f"configuration {configuration}")
        color = GREY if configuration in eliminated else BLUE
        for seed in range(repeats):
            number = configuration * repeats + seed
            x = 166 + 80 * seed
            if number in results:
                figure.box(x, y, 68, 30, color, f"{results[number]:.3f}")
                place = f"{order.index(number) + 1}."
                figure.text(x + 66, y + 42, place, INK, anchor="end", size=12)
            else:
                figure.box(x, y, 68, 30, "#eff2f5")
                figure.text(x + 34, y + 19, "skipped", GREY, anchor="middle", size=11)
    return figure


def _simulate_race(
    means: Sequence[float], repeats: int
) -> tuple[dict[int, float], Collection[int]]:
    """Return the result of each trial that a race runs, in its order, and the configurations that
    it eliminates."""
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
    results = {}
    suggested = race.suggest()
    while suggested is not None:
        number = suggested["number"]
        configuration, seed = divmod(number, repeats)
        result = means[configuration] + noise[(seed + configuration) % repeats]
        results[number] = result
        race.record_report(number, {settings.metrics[0]: result})
        race.record_end(number, {settings.metrics[0]: result})
        suggested = race.suggest()
    return results, race.eliminated


def draw_shared_training() -> Figure:
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
    return figure


def draw_repeats() -> Figure:
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
    return figure
