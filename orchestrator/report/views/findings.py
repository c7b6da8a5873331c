"""The findings of the doctor, with their evidence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.report import page, tables
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
        left_out = len(diagnosis.findings) - len(cards)
        more = (
            page.empty_note(f"And {left_out:,} less serious ones: hookyard doctor {shlex.quote(path)}")
            if left_out
            else None
        )
        content = element("div", *cards, more, class_="cards")
    return page.Section("findings", "Findings", content, f"{diagnosis}. By hookyard doctor.")


def _card(number: int, finding: Finding) -> Markup:
    return element(
        "article",
        element("h3", f"{number}. {finding.kind}"),
        element("p", finding.sentence),
        element("p", "Try: ", finding.advice),
        element("p", "See: ", element("code", finding.query)) if finding.query else None,
        (
            element("details", element("summary", "Evidence"), tables.facts("Numbers", evidence(finding.numbers)))
            if finding.numbers
            else None
        ),
        class_="card",
    )


def evidence(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a finding, with mappings expanded."""
    entries: dict[str, Any] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            # The unit stands before `_by_`.
            entries |= {
                f"{name}: {key}": tables.Quantity(name.partition("_by_")[0], inner) for key, inner in value.items()
            }
        else:
            entries[name] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return entries
