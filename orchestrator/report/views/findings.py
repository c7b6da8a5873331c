"""The doctor's findings on a run."""

import shlex
from collections.abc import Sequence

from orchestrator import units
from orchestrator.doctor import Diagnosis, Finding
from orchestrator.report import page
from orchestrator.report.markup import Markup, element

MAX_FINDINGS = 8
"""Maximum number of findings on the page."""


def render_findings(diagnosis: Diagnosis, path: str) -> page.Section:
    """Render the findings on a run, most serious first. `path` is the path of the run."""
    content: str = f"{diagnosis.verdict.capitalize()}."
    if diagnosis.findings:
        content = _make_cards(diagnosis.findings, path)
    return page.Section("findings", "Findings", content, f"{diagnosis}. By hookyard doctor.")


def _make_cards(findings: Sequence[Finding], path: str) -> Markup:
    shown = findings[:MAX_FINDINGS]
    children = [_make_card(number, finding) for number, finding in enumerate(shown, start=1)]
    omitted = len(findings) - len(shown)
    if omitted:
        more = units.format_count(omitted, "less serious finding")
        children.append(page.make_note(f"And {more}: hookyard doctor {shlex.quote(path)}"))
    return element("div", *children, class_="cards")


def _make_card(number: int, finding: Finding) -> Markup:
    query = element("p", "See: ", element("code", finding.query)) if finding.query else None
    return element(
        "article",
        element("h3", f"{number}. {finding.kind}"),
        element("p", finding.sentence),
        element("p", "Try: ", finding.advice),
        query,
        class_="card",
    )
