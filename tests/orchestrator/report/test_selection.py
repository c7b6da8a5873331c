"""Pages of very many trials: they stay small, say what they leave out, and lose neither the best nor the worst."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.records.metadata import RunMetadata
from orchestrator.report import sweep as sweeps
from orchestrator.report.page import Section
from orchestrator.report.selection import best_and_others, fitting, shortened
from tests.orchestrator.report.reading import parsed, tables_of

MODES = [("val/loss", "min"), ("val/accuracy", "max")]


def test_the_best_come_first_and_the_others_evenly_down_to_the_worst() -> None:
    assert best_and_others(range(5), 5) == [0, 1, 2, 3, 4]
    assert best_and_others(range(101), 6) == [0, 1, 2, 3, 52, 100]
    assert (fitting(10, 100, 4000), fitting(100, 100, 4000), fitting(9999, 100, 4000)) == (100, 40, 1)


def test_long_texts_are_cut() -> None:
    table = shortened(pd.DataFrame({"config/hook": ["x" * 300, None], "error": ["y" * 5000, "z"], "n": [1.0, 2.0]}))
    assert (len(table["config/hook"][0]), len(table["error"][0]), table["error"][1], table["n"].tolist()) == (
        201,
        4001,
        "z",
        [1.0, 2.0],
    )


def many(count: int, columns: int) -> pd.DataFrame:
    """Trials of which each tenth failed at length, and the front has very many."""
    index = [f"t{number}" for number in range(count)]
    place = np.arange(count) / count
    failed = np.arange(count) % 10 == 9
    numbers = {f"config/hooks.some_hook.field_{number}": np.roll(place, number) for number in range(columns // 2)}
    metrics = {f"train/metric_{number}": np.roll(place, -number) for number in range(columns // 2)}
    table = pd.DataFrame(
        {
            "status": np.where(failed, "failed", "finished"),
            **numbers,
            "config/hook": '{"text": "' + "x" * 2000 + '"}',
            **metrics,
        },
        index=index,
    )
    return table.assign(
        **{
            "val/loss": np.where(failed, np.nan, place),
            "val/accuracy": np.where(failed, np.nan, place),
            "error": np.where(failed, "why " * 9000, None),
        }
    )


@pytest.mark.parametrize(("count", "columns"), [(2000, 20), (700, 300)])
def test_a_page_of_very_many_trials_is_small_and_says_so(
    count: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = 240
    curve = [{"step": step, "val/loss": 1 / step, "val/accuracy": float(step)} for step in range(1, reports + 1)]
    asked: list[str] = []

    def no_file(name: str) -> bytes:
        raise FileNotFoundError(name)

    storage = SimpleNamespace(read=no_file, exists=lambda name: False, each=lambda call, things: [*map(call, things)])
    told: Any = SimpleNamespace(
        name="s",
        repeats=1,
        aggregate="mean",
        path="runs/s",
        status="finished",
        folder=SimpleNamespace(
            storage=storage, experiment_text=str, metadata=lambda: RunMetadata("s", "finished", "2026-11-21T09:00:00Z")
        ),
        objectives=MODES,
        trials=many(count, columns),
        trial=lambda name: SimpleNamespace(name=name, best=None, reports=lambda: asked.append(name) or curve),
    )
    monkeypatch.setattr(sweeps, "mean_spans", lambda sweep, names: pd.DataFrame())
    monkeypatch.setattr(
        sweeps,
        "parameter_importance",
        lambda trials, objectives, aggregate: Section("mattered", "Parameter importance", ""),
    )
    html = sweeps.sweep_page(told, "now")
    assert len(html) < 4e6
    assert len(asked) == sweeps.MOST_CURVES
    main = html[html.index("<main") : html.index("</main>") + len("</main>")]
    shown = [one.get("data-trial") for one in parsed(main).iter("tr") if one.get("data-trial")]
    assert shown[:2] == ["t0", "t1"]
    assert f"{len(shown):,} of {count:,} trials: the best, and some that failed. All of them: hookyard show" in html
    assert f"200 of {count * 9 // 10:,} trials are drawn: the 100 best, and others evenly down to the worst." in html
    assert f"Drawn: 600 of {count * 9 // 10:,} trials on the front, and 0 of 0 others." in html
    row = tables_of(main)["val/loss"][1]
    assert row[:4] == ["t0", str(reports), f"{1 / reports:.4g}", "1"]
