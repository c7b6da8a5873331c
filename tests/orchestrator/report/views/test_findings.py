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


def test_a_finding_has_its_sentence_and_what_to_try() -> None:
    section = findings(made(1), "runs/x")
    (card,) = parsed(section.content).iter("article")
    assert [text_of(part) for part in card] == [
        "1. data",
        "sentence 0",
        "Try: advice",
        "See: hookyard stats runs/x",
    ]
    assert section.note.startswith("200 training iterations of 2 ranks, 100 ms each")


def test_of_many_the_weightiest_are_shown_and_the_others_counted() -> None:
    content = parsed(findings(made(MOST + 3), "runs/x").content)
    assert len(list(content.iter("article"))) == MOST
    assert "And 3 less serious ones: hookyard doctor runs/x" in text_of(content)


def test_a_healthy_run_and_one_that_says_too_little() -> None:
    assert "No findings" in str(findings(made(0), "x").content)
    assert "too few rows" in str(findings(Diagnosis((), {"iterations": 0, "ranks": 0}), "x").content)
