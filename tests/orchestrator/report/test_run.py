from types import SimpleNamespace
from typing import Any

import pandas as pd

from orchestrator.disk.metadata import RunMetadata
from orchestrator.doctor import Diagnosis, Finding
from orchestrator.doctor.key_figures import KeyFigures
from orchestrator.report.views.findings import MAX_FINDINGS, render_findings
from orchestrator.storage import Storage
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import costs, slower, training
from tests.orchestrator.report.reading import main_of, make_run_page, parsed, text_of

SECTIONS = ("findings", "best", "learning", "time", "memory", "hooks", "recorded", "experiment")


REPORTS = [
    {"epoch": 1, "step": 100, "val/accuracy": 0.5},
    {"epoch": 2, "step": 200, "val/accuracy": 0.75},
]
FINISHED = RunMetadata(
    name="digits", status="finished", started="2026-11-21T09:00:00Z", ended="2026-11-21T10:30:00Z"
)


def run_of(
    *,
    reports: Any = REPORTS,
    metadata: RunMetadata = FINISHED,
    config: str = "name: digits\n",
    attempts: Any = (),
    **changes: Any,
) -> Any:
    """A run with tables that no run has recorded."""
    known = {
        "name": "digits",
        "path": "runs/digits",
        "status": "finished",
        "folder": SimpleNamespace(
            read_experiment_text=lambda: config,
            read_metadata=lambda: metadata,
            read_attempts=lambda: attempts,
            storage=Storage("/no/such/folder"),
            find_status=lambda metadata: metadata.status,
        ),
        "reports": lambda: reports,
        "best": None,
        "modes": {},
        "stats": training(2, change=slower("forward_s", 1, 0.02), loss=1.0, rss_bytes=2.0**30),
        "hook_costs": costs((0, "ema", "on_update", 200, 0.1)),
    }
    run = {**known, **changes}
    return SimpleNamespace(**run, rows=lambda: Rows.wrap(run["stats"]))


def tiles(run: Any) -> dict[str, str]:
    tree = main_of(make_run_page(run))
    return {
        text_of(name): text_of(value)
        for name, value in zip(tree.iter("dt"), tree.iter("dd"), strict=True)
    }


def test_headline_has_best_metrics_and_costs() -> None:
    run = run_of()
    spent = run.stats["step_s"].sum()
    found = tiles(run)
    assert found["best val/accuracy"] == "0.75epoch 3, step 200"
    assert found["wall time"].startswith("1 h 30 min")
    assert found["rank-seconds"] == f"{spent:.4g}in 400 iterations of 2 ranks"
    assert found["peak memory of a process"].startswith("1 GiB")


def test_headline_has_last_value_of_a_metric_without_direction() -> None:
    reports = [
        {"epoch": 1, "step": 100, "val/score": 0.75, "val/ppl": 9.0},
        {"epoch": 2, "step": 200, "val/score": 0.5, "val/ppl": 7.0},
    ]
    found = tiles(run_of(reports=reports))
    assert found["last val/score"] == "0.5epoch 3, step 200"
    assert found["best val/ppl"] == "7epoch 3, step 200"
    assert (
        tiles(run_of(reports=reports, modes={"val/score": "max"}))["best val/score"]
        == "0.75epoch 2, step 100"
    )


def test_every_section_exists_for_any_run() -> None:
    empty = run_of(
        stats=pd.DataFrame(columns=["rank", "node", "phase", "epoch", "iteration", "step"]),
        reports=[],
        hook_costs=costs(),
        metadata=RunMetadata(name="digits", status="running", started="2026-11-21T09:00:00Z"),
        config="",
    )
    for run in (run_of(), empty):
        html = make_run_page(run)
        assert [html.count(f'<section id="{name}"') for name in SECTIONS] == [1] * len(SECTIONS)
    assert make_run_page(empty).count('class="nothing"') == len(SECTIONS) - 1


def test_running_run_has_no_wall_time() -> None:
    assert "wall time" not in tiles(
        run_of(
            metadata=RunMetadata(name="digits", status="running", started="2026-11-21T09:00:00Z")
        )
    )


FIGURES = KeyFigures(iterations=200, ranks=2, step_s=0.1)


def diagnosis_of(count: int) -> Diagnosis:
    return Diagnosis(
        tuple(
            Finding("data", f"sentence {place}", {"share": 0.5}, "hookyard stats RUN", "advice")
            for place in range(count)
        ),
        FIGURES,
    )


def test_card_has_sentence_and_advice() -> None:
    section = render_findings(diagnosis_of(1).with_path("runs/x"), "runs/x")
    (card,) = parsed(section.content).iter("article")
    assert [text_of(part) for part in card] == [
        "1. data",
        "sentence 0",
        "Try: advice",
        "See: hookyard stats runs/x",
    ]
    assert section.note.startswith("200 training iterations of 2 ranks, 100 ms each")


def test_only_the_most_serious_findings_are_shown() -> None:
    content = parsed(render_findings(diagnosis_of(MAX_FINDINGS + 3), "runs/x").content)
    assert len(list(content.iter("article"))) == MAX_FINDINGS
    assert "And 3 less serious findings: hookyard doctor runs/x" in text_of(content)


def test_healthy_run_and_run_with_too_few_rows() -> None:
    assert "No findings" in str(render_findings(diagnosis_of(0), "x").content)
    assert "Too few rows" in str(render_findings(Diagnosis(()), "x").content)
