"""Pages read back: markup has to be well-formed, its tables are lists again, and its charts are
lines."""

import base64
import json
from typing import Any
from xml.etree import ElementTree

import numpy as np

from orchestrator.report.document import make_file
from orchestrator.report.markup import Content
from orchestrator.report.run import outline_run
from orchestrator.report.sweep import outline_sweep
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def make_run_page(run: Run) -> str:
    """Return the page of a run, perhaps of one with tables that only the test has made."""
    return make_file(outline_run(run), str(run.folder), "now")


def make_sweep_page(sweep: Sweep) -> str:
    """Return the page of a sweep, perhaps of one with tables that only the test has made."""
    return make_file(outline_sweep(sweep), str(sweep.folder), "now")


def parsed(markup: Content) -> ElementTree.Element:
    """Parse a piece of markup; fails where it is not well-formed."""
    return ElementTree.fromstring(f"<all>{markup}</all>")


def main_of(page: str) -> ElementTree.Element:
    """Return the content of a page, without its scripts."""
    return parsed(page[page.index("<main") : page.index("</main>") + len("</main>")])


def text_of(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def tables_of(markup: Content | ElementTree.Element) -> dict[str, list[list[str]]]:
    """Return each table by its caption, as lines of cells, the headings first."""
    tree = markup if isinstance(markup, ElementTree.Element) else parsed(markup)
    return {
        text_of(caption): [[text_of(cell) for cell in row] for row in table.iter("tr")]
        for table in tree.iter("table")
        if (caption := table.find("caption")) is not None
    }


def charts_of(markup: Content | ElementTree.Element) -> dict[str, dict[str, Any]]:
    """Return the plotly figure of each chart by its title."""
    tree = markup if isinstance(markup, ElementTree.Element) else parsed(markup)
    return {
        figure.findtext("figcaption/b", ""): _decode(json.loads(figure.findtext("div/script", "")))
        for figure in tree.iter("figure")
    }


def lines_of(chart: dict[str, Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return the positions and values of a chart's named lines or bars."""
    return {trace["name"]: (trace["x"], trace["y"]) for trace in chart["data"] if "name" in trace}


def _decode(value: Any) -> Any:
    """Return plotly's JSON with its encoded arrays as lists."""
    if isinstance(value, list):
        return [_decode(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if "bdata" not in value:
        return {name: _decode(inner) for name, inner in value.items()}
    numbers = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return numbers.reshape([int(length) for length in value.get("shape", "-1").split(",")]).tolist()
