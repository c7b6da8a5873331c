"""The pages as a browser shows them: nothing breaks, nothing sticks out, and what can be clicked does what it says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import report
from orchestrator.records.metadata import RunMetadata
from orchestrator.report import sweep as sweeps
from orchestrator.report.run import run_page
from orchestrator.report.views.trials import trials
from tests.browser import CHROMIUM, looked_at
from tests.orchestrator.report.test_run import run_of
from tests.orchestrator.report.views.test_comparison import MAX, TRIALS

STYLE = Path(report.__file__).with_name("style.css")
LOOK = """(async () => {
  const find = (selector) => document.querySelector(selector);
  const text = (selector) => find(selector)?.textContent;
  const dark = { false: "rgb(255, 255, 255)", true: "rgb(21, 24, 30)" };
  const heading = find("table.sortable thead th:nth-child(3) button");
  heading.click();
  const column = [...find("table.sortable").tBodies[0].rows].map((row) => parseFloat(row.cells[2].title));
  find("tr[data-trial] td")?.click();
  const theme = find("#theme");
  theme.value = "dark";
  theme.onchange();
  const plot = find(".plot[data-low]");
  plot?.focus();
  plot?.dispatchEvent(new window.KeyboardEvent("keydown", { key: "ArrowRight" }));
  const tip = text("#tip");
  const heat = find(".heat");
  const box = heat?.getBoundingClientRect();
  heat?.dispatchEvent(new window.PointerEvent("pointermove", { clientX: box.left + 1, clientY: box.bottom - 1 }));
  return {
    sticks_out: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    sorted: [heading.parentElement.ariaSort, column.every((value, place) => !place || column[place - 1] <= value)],
    picked: text("#picked-name"),
    page: window.getComputedStyle(document.body).backgroundColor === dark[true],
    tip, heat: heat && text("#tip"),
  };
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_pages_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sweep = tmp_path / "run.html", tmp_path / "sweep.html"
    made = run_of()
    run.write_text(run_page(made, "now"))
    finished = TRIALS.assign(status="finished").iloc[::-1]
    reports = {str(name): [{"step": 1, "val/accuracy": 0.5}] for name in finished.index}

    def no_file(name: str) -> bytes:
        raise FileNotFoundError(name)

    storage = SimpleNamespace(read=no_file, exists=lambda name: False, each=lambda call, things: [*map(call, things)])
    metadata = RunMetadata("s", "finished", "2026-11-21T09:00:00Z")
    monkeypatch.setattr(
        sweeps, "mean_spans", lambda sweep, names: finished[["step_s"]].rename(columns={"step_s": "forward_s"})
    )
    told: Any = SimpleNamespace(
        repeats=1,
        aggregate="mean",
        name="s",
        path="s",
        status="finished",
        folder=SimpleNamespace(storage=storage, experiment_text=str, metadata=lambda: metadata),
        objectives=MAX,
        trials=finished,
        trial=lambda name: SimpleNamespace(name=name, best=None, reports=partial(list, reports[name])),
    )
    sweep.write_text(sweeps.sweep_page(told, "now"))
    answers, others = looked_at([(run, 390), (run, 1280), (sweep, 390), (sweep, 1280)], LOOK)
    assert others == []
    last = made.stats[(made.stats["rank"] == 1) & (made.stats["iteration"] == 1)]
    own_s = float((last["step_s"] - last["all_reduce_wait_s"]).iloc[0])
    assert [answer.pop("heat") for answer in answers] == [f"rank 1, iteration 1: {own_s * 1000:.4g} ms"] * 2 + [
        None
    ] * 2
    assert [answer.pop("tip") for answer in answers][:2] == [
        "step 1\ntrain, by step, smallest: 1\ntrain, by step: 1\ntrain, by step, largest: 1"
    ] * 2
    assert [answer.pop("picked") for answer in answers] == ["", "", "t0", "t0"]
    assert answers == [{"sticks_out": 0, "sorted": ["ascending", True], "page": True}] * 4


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_rows_of_the_trials_are_at_most_two_lines_high(tmp_path: Path) -> None:
    """However many columns there are before the last one; five lines high they were."""
    wide = TRIALS.assign(**{f"config/hooks.some_hook_{n}.a_long_field": 0.5 for n in range(8)})
    wide = wide.assign(status="stopped", stopped="val/accuracy has not improved on 0.5 by more than 0.0 in 5 reports")
    page = tmp_path / "sweep.html"
    page.write_text(f"<style>{STYLE.read_text()}</style>{trials(wide, MAX, 's').content}")
    look = """[...document.querySelectorAll("tbody tr")].map((row) => row.getBoundingClientRect().height
        / parseFloat(window.getComputedStyle(row).fontSize)).reduce((most, ems) => Math.max(most, ems))"""
    heights, _ = looked_at([(page, 390), (page, 1280)], look)
    assert max(heights) < 4
