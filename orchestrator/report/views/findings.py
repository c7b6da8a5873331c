"""The findings of the doctor."""

from __future__ import annotations

import shlex

from orchestrator.report import page
from orchestrator.report.markup import Markup, element
from orchestrator.stats.insight import Diagnosis, Finding

MOST = 8
"""Findings on the page."""


def findings(diagnosis: Diagnosis, path: str) -> page.Section:
    """Show the findings on a run, most serious first; `path` is that of the run."""
    diagnosis = diagnosis.with_path(path)
    content = "No findings." if diagnosis.healthy else "There are too few rows for a diagnosis."
    if diagnosis.findings:
        cards = [_card(number, finding) for number, finding in enumerate(diagnosis.findings[:MOST], start=1)]
        omitted = len(diagnosis.findings) - len(cards)
        more = f"And {omitted:,} less serious ones: hookyard doctor {shlex.quote(path)}"
        content = element("div", *cards, page.empty_note(more) if omitted else None, class_="cards")
    return page.Section("findings", "Findings", content, f"{diagnosis}. By hookyard doctor.")


def _card(number: int, finding: Finding) -> Markup:
    return element(
        "article",
        element("h3", f"{number}. {finding.kind}"),
        element("p", finding.sentence),
        element("p", "Try: ", finding.advice),
        element("p", "See: ", element("code", finding.query)) if finding.query else None,
        class_="card",
    )
