"""The pages as a browser shows them: charts are drawn, nothing sticks out, and nothing is an
error."""

from pathlib import Path

import pytest

from orchestrator import run as train
from orchestrator import sweep
from orchestrator.report import make_report
from tests.browser import CHROMIUM, inspect_pages, open_tab
from tests.orchestrator.disk.test_media import pictured
from tests.orchestrator.report.reading import make_run_page, make_sweep_page
from tests.orchestrator.report.test_run import run_of
from tests.tasks import described

HOSTILE = "<img src=x onerror=console.log(1)></script><script>console.log(2)</script>"
LOOK = """(async () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  all("table.sortable thead th:nth-child(3) button").forEach((button) => button.click());
  const rows = [...document.querySelector("table.sortable").tBodies[0].rows];
  const column = rows.map((row) => parseFloat(row.cells[2].title));
  const plots = all(".plot");
  window.dispatchEvent(new window.Event("beforeprint"));
  for (const plot of plots) {
    const trial = plot.data.find((trace) => trace.name === "trial-0001");
    if (trial) plot.emit("plotly_click", { points: [{ data: trial }] });
  }
  const page = window.getComputedStyle(document.body).backgroundColor;
  await new Promise((done) => window.setTimeout(done, 300));
  const printed = Math.max(...plots.map((plot) => plot.querySelector("svg").clientWidth));
  window.dispatchEvent(new window.Event("afterprint"));
  await new Promise((done) => window.setTimeout(done, 300));
  return {
    sticks_out: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    sorted: column.every((value, place) => !place || column[place - 1] <= value),
    drawn: plots.length > 3 && plots.every((plot) => plot.querySelector(".plot-container svg")),
    as_wide: plots.every((plot) => plot.querySelector("svg").clientWidth === plot.clientWidth),
    printed, page, picked: window.location.hash,
  };
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_pages_render_in_a_browser(tmp_path: Path) -> None:
    run = tmp_path / "run.html"
    run.write_text(
        make_run_page(run_of(name=HOSTILE, reports=[{"step": 1, f"val/{HOSTILE}": 0.5}]))
    )
    space = {"optimizer.lr": {"grid": [0.01, 0.2]}}
    settings = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    outcome = sweep(described(sweep=settings), tmp_path, local=True)
    swept = tmp_path / "sweep.html"
    swept.write_text(make_sweep_page(outcome))
    answers, messages = inspect_pages([(run, 390), (run, 1280), (swept, 390), (swept, 1280)], LOOK)
    assert messages == []
    assert [answer.pop("picked") for answer in answers] == ["", "", "#trial-0001", "#trial-0001"]
    expected = {
        "sticks_out": 0,
        "sorted": True,
        "drawn": True,
        "as_wide": True,
        "printed": 660,
        "page": "rgb(255, 255, 255)",
    }
    assert answers == [expected] * 4


IN_SIGHT = """[...document.querySelectorAll("#media figure")].map((figure) =>
  [...figure.querySelectorAll(".frames > :not([hidden])")].map((frame) => frame.innerText.split("\\n")[0]).join())"""
IMAGE = "document.querySelector('#media img')"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_slider_chooses_the_step(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(make_report(train(pictured(), tmp_path, local=True).folder))
    with open_tab() as tab:
        tab.open(page.as_uri())
        tab.see("document.querySelector('#media').scrollIntoView()")
        last = "epoch 2, step 8"
        tab.wait(f"({IN_SIGHT}).join() === '{last},{last},{last}'")
        tab.wait("[...document.querySelectorAll('#media img')].at(-1).complete")
        assert tab.see("[...document.querySelectorAll('#media img')].at(-1).naturalWidth") == 5
        tab.see("document.querySelector('#media input').focus()")
        tab.press("ArrowLeft", 37)
        assert tab.see(IN_SIGHT) == ["epoch 1, step 4", last, last]
        assert tab.see("document.activeElement.ariaValueText") == "epoch 1, step 4"
        tab.wait(f"{IMAGE}.complete && {IMAGE}.naturalHeight === 8")
        for width in (420, 1280):
            tab.show(width, "dark")
            root = "document.documentElement"
            assert tab.see(f"{root}.scrollWidth - {root}.clientWidth") == 0
        assert tab.messages == []
