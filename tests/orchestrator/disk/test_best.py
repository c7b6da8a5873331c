"""The entry `best` of run.json: of a run, of a sweep, and of a sweep with repeats."""

from typing import Any

import pytest

from orchestrator.disk.best import BestConfiguration, BestTrial, read_best

REPORT: dict[str, Any] = {
    "metric": "val/loss",
    "mode": "min",
    "value": 0.5,
    "epoch": 0,
    "step": 4,
    "iteration": 4,
}
TRIAL = {**REPORT, "trial": "trial-0003"}
CONFIGURATION = {**TRIAL, "configuration": 1, "mean": 0.75, "description": "0.75 ± 0.1"}


@pytest.mark.parametrize(
    ("entry", "place", "score"),
    [
        (REPORT, "", 0.5),
        ({**REPORT, "checkpoint": "epoch-0001"}, "epoch-0001", 0.5),
        (TRIAL, "trial-0003", 0.5),
        ({**TRIAL, "checkpoint": "epoch-0001"}, "trial-0003/epoch-0001", 0.5),
        (CONFIGURATION, "trial-0003", 0.75),
    ],
)
def test_best_has_the_place_and_the_score_of_its_kind(
    entry: dict[str, Any], place: str, score: float
) -> None:
    best = read_best(entry)
    assert best is not None
    assert (best.place, best.score) == (place, score)
    assert isinstance(best, BestTrial) is ("trial" in entry)
    assert isinstance(best, BestConfiguration) is ("mean" in entry)


def test_error_of_an_entry_names_its_path() -> None:
    assert read_best(None) is None
    with pytest.raises(ValueError, match=r"`best.value`: .*, got 'low'"):
        read_best({**TRIAL, "value": "low"})
    with pytest.raises(ValueError, match=r"it has no `best.mean`"):
        read_best({name: value for name, value in CONFIGURATION.items() if name != "mean"})
