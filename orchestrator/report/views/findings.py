"""The findings of the doctor, with what they rest on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.report import page, tables
from orchestrator.report.markup import Markup, element
from orchestrator.stats.insight import Diagnosis, Finding

MOST = 8
"""The most findings on the page."""


def findings(diagnosis: Diagnosis, path: str) -> page.Section:
    """Findings of the run, the weightiest first; `path` is where the run lies."""
    diagnosis = diagnosis.with_path(path)
    content = (
        "Nothing to say against this run." if diagnosis.healthy else "The tables say too little to judge this run."
    )
    if diagnosis.findings:
        cards = [_card(number, finding) for number, finding in enumerate(diagnosis.findings[:MOST], start=1)]
        left_out = len(diagnosis.findings) - len(cards)
        more = (
            page.nothing(f"And {left_out:,} that weigh less: hookyard doctor {shlex.quote(path)}") if left_out else None
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
    """The numbers of a finding, with those by rank or by span each on a line of its own."""
    found: dict[str, Any] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            # The unit comes last in a name: seconds_by_rank of rank 3 is as seconds.
            found |= {
                f"{name}: {key}": tables.Quantity(name.partition("_by_")[0], inner) for key, inner in value.items()
            }
        else:
            found[name] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return found
