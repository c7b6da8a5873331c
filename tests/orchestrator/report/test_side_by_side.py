"""Pages of runs and sweeps beside each other, read back."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.report.side_by_side import best_so_far, runs_page, sweeps_page
from orchestrator.sweeps.results.result import Sweep
from tests.orchestrator.report.reading import tables_of
from tests.orchestrator.sweeps.results.test_comparison import made


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[Sweep]:
    roots = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    return [
        made(root, "same", [0.2, 0.8, value, 0.3, 0.4, 0.5, 0.6, 0.7], width=width)
        for root, value, width in zip(roots, (0.1, 0.9), (8, 16), strict=True)
    ]


def body(page: str) -> str:
    return page[page.index("<main") : page.index("</main>") + len("</main>")]


def test_the_page_of_sweeps(sweeps: list[Sweep]) -> None:
    tables = tables_of(body(sweeps_page(sweeps, "now")))
    assert tables["Differences of the experiments"] == [["", "same", "same"], ["task_args.width", "8", "16"]]
    assert tables["The best trial of each, with its values"][1] == ["best trial", "trial-0001", "trial-0002"]
    # Sweeps of one name are told apart by where they lie.
    assert tables["val/accuracy"][0] == ["trial", sweeps[0].path, sweeps[1].path]
    assert tables["val/accuracy"][3] == ["3", "0.8", "0.9"]


def test_the_page_of_runs(sweeps: list[Sweep]) -> None:
    page = body(runs_page([sweeps[0].runs[0], sweeps[0].runs[1]], "now"))
    assert "Differences of the experiments" not in page
    assert "no difference" in page
    assert tables_of(page)["val/accuracy"] == [["step", "trial-0000", "trial-0001"], ["1", "0.2", "0.8"]]


def test_the_best_so_far_passes_over_trials_that_reached_nothing() -> None:
    trials, best = best_so_far(np.array([0.5, np.nan, 0.4, 0.7]), "max")
    assert (trials.tolist(), best.tolist()) == ([1, 3, 4], [0.5, 0.5, 0.7])
    assert best_so_far(np.array([0.5, 0.4, 0.7]), "min")[1].tolist() == [0.5, 0.4, 0.4]
