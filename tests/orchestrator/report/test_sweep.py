from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import sweep
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.report.sweep import compute_mean_spans, make_cost_tiles
from orchestrator.report.tables import Quantity
from orchestrator.sweeps.results.result import Sweep
from tests.orchestrator.report.reading import (
    charts_of,
    lines_of,
    main_of,
    make_sweep_page,
    tables_of,
)
from tests.tasks import described

SECTIONS = (
    "trials",
    "best",
    "coordinates",
    "importance",
    "front",
    "progress",
    "spending",
    "experiment",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "search": "grid",
        "space": {"optimizer.lr": {"grid": [0.01, 0.2]}},
    }
    return sweep(described(sweep=settings), tmp_path_factory.mktemp("runs"), local=True)


def with_tables(outcome: Sweep, **tables: Any) -> Any:
    """The sweep, with tables that it has not made."""
    return type("Changed", (Sweep,), tables)(outcome.folder)


def test_sweep_page_lists_trials_best_first(outcome: Sweep) -> None:
    tree = main_of(make_sweep_page(outcome))
    assert [one.get("id") for one in tree.iter("section")] == list(SECTIONS)
    expected = outcome.trials.sort_values("val/accuracy", ascending=False, kind="stable")
    table = tables_of(tree)["Each trial at its best report, best first"]
    assert [row[0] for row in table[1:]] == list(expected.index)
    assert outcome.best.name in (
        name
        for name, best in expected["val/accuracy"].items()
        if best == expected["val/accuracy"].iloc[0]
    )
    curves = lines_of(charts_of(tree)["val/accuracy"])
    assert {name: len(steps) for name, (steps, _) in curves.items()} == {
        run.name: len(run.reports()) for run in outcome.runs
    }


def test_spans_of_a_trial_are_means_of_its_rows(outcome: Sweep) -> None:
    trial = outcome.runs[1]
    rows = trial.stats
    means = rows[rows["phase"] == "train"][["forward_s", "backward_s"]].mean()
    found = compute_mean_spans(outcome, [trial.name])
    assert found.loc[trial.name, ["forward_s", "backward_s"]].tolist() == pytest.approx(
        means.tolist()
    )


def test_shared_training_costs_until_its_longest_trial_ends() -> None:
    alone = pd.DataFrame({"train_s": [2.0, 8.0], "ranks": [2, 1], "reports": [4, 2]}, ["a", "b"])
    follower = pd.DataFrame({"ranks": [2], "reports": [10], "leader": "a"}, ["c"])
    values = [
        make_cost_tiles(trials)[0].value
        for trials in (alone, pd.concat([alone.assign(leader=["a", None]), follower]))
    ]
    assert values == [Quantity("", 12.0), Quantity("", 18.0)]


def test_the_use_of_the_best_checkpoint_depends_on_its_trial(
    outcome: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task with a custom loop has no order of samples, and no model to load."""
    monkeypatch.setattr(
        RunFolder, "read_attempts", lambda folder: [Attempt(0)] if folder.exists() else []
    )
    assert ".best.checkpoint(" in make_sweep_page(outcome)


def test_a_sweep_without_a_trial_has_every_section(outcome: Sweep) -> None:
    html = make_sweep_page(with_tables(outcome, trials=pd.DataFrame([]), runs=[]))
    assert html.count('class="nothing"') == len(SECTIONS) - 1


@pytest.mark.parametrize(
    ("repeats", "space", "is_shown"),
    [(2, {}, False), (1, {"seed": {"grid": [3, 4]}}, True)],
)
def test_importance_is_shown_only_for_parameters(
    tmp_path: Path, repeats: int, space: dict[str, Any], is_shown: bool
) -> None:
    settings = {"metric": "val/accuracy", "mode": "max", "repeats": repeats, "space": space}
    page = make_sweep_page(sweep(described(sweep=settings), tmp_path, local=True))
    sections = [section.get("id") for section in main_of(page).iter("section")]
    assert ("importance" in sections) == is_shown
