from __future__ import annotations

from orchestrator.report.views.findings import MOST, findings
from orchestrator.stats.insight import Diagnosis, Finding
from tests.orchestrator.report.reading import parsed, text_of

SIGNS = {"iterations": 200, "ranks": 2, "step_s": 0.1}


def made(count: int) -> Diagnosis:
    return Diagnosis(
        tuple(
            Finding("data", f"sentence {place}", {"share": 0.5}, "hookyard stats RUN", "advice")
            for place in range(count)
        ),
        SIGNS,
    )


def test_card_has_sentence_and_advice() -> None:
    section = findings(made(1), "runs/x")
    (card,) = parsed(section.content).iter("article")
    assert [text_of(part) for part in card] == [
        "1. data",
        "sentence 0",
        "Try: advice",
        "See: hookyard stats runs/x",
    ]
    assert section.note.startswith("200 training iterations of 2 ranks, 100 ms each")


def test_only_the_most_serious_findings_are_shown() -> None:
    content = parsed(findings(made(MOST + 3), "runs/x").content)
    assert len(list(content.iter("article"))) == MOST
    assert "And 3 less serious ones: hookyard doctor runs/x" in text_of(content)


def test_healthy_run_and_run_with_too_few_rows() -> None:
    assert "No findings" in str(findings(made(0), "x").content)
    assert "too few rows" in str(findings(Diagnosis((), {"iterations": 0, "ranks": 0}), "x").content)
