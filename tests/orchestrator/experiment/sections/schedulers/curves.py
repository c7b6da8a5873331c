"""Scores of trials, and the reports after which a rule stops them."""

import random
from typing import Protocol


class Rule(Protocol):
    def should_stop(self, trial: int, report: int, score: float) -> bool: ...


def draw_curves(seed: int) -> list[list[float]]:
    """Draw 12 scores of each of 20 trials; some trials diverge on the way."""
    draw = random.Random(seed)
    curves = []
    for _ in range(20):
        curve = [draw.random() + draw.random() * report for report in range(12)]
        if draw.random() < 0.4:
            start = draw.randrange(4)
            curve[start:] = [-1e300] * (12 - start)
        curves.append(curve)
    return curves


def count_reports(rule: Rule, curves: list[list[float]]) -> list[int]:
    """Train one trial after another, and return after how many reports each ends."""
    return [_count_reports_of_one(rule, number, curve) for number, curve in enumerate(curves)]


def _count_reports_of_one(rule: Rule, number: int, curve: list[float]) -> int:
    for report, score in enumerate(curve, 1):
        if rule.should_stop(number, report, score):
            return report
    return len(curve)
