"""A hook may report a metric without a phase, which is shown wherever metrics are shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hooks import Hook, State
from hooks.logs.tensorboard import FOLDER
from orchestrator import Run, list_runs, run
from orchestrator.runs.comparison import compare_runs
from tests.tasks import described


@dataclass
class Gain(Hook):
    """Reports a quarter for each epoch."""

    factor: float = 0.25

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics["gain"] = self.factor * state.epoch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    done = []
    for name, factor in (("first", 0.25), ("other", 0.5)):
        hooks = {"gain": {"type": f"{__name__}:Gain", "factor": factor}, "tensorboard": {}}
        done.append(run(described(epochs=2, hooks=hooks), str(folder), name, local=True))
    return done


def test_the_index_of_runs_has_its_last_value(runs: list[Run]) -> None:
    table = list_runs(Path(runs[0].path).parent).set_index("name")
    assert table["last/gain"].to_dict() == {"first": 0.5, "other": 1.0}


def test_trackers_draw_it(runs: list[Run]) -> None:
    events = EventAccumulator(str(next(Path(runs[0].path).rglob(FOLDER))))
    events.Reload()
    assert [point.value for point in events.Scalars("gain")] == [0.25, 0.5]
    entries = {"epoch", "step", "iteration", "samples", "attempt", "time"}
    assert entries.isdisjoint(events.Tags()["scalars"])


def test_it_is_compared(runs: list[Run]) -> None:
    compared = compare_runs(runs).metrics
    shown = {name: entry.values for name, entry in compared.items() if "gain" in name}
    assert [0.5, 1.0] in shown.values()


def test_a_notebook_shows_it(runs: list[Run]) -> None:
    html = runs[0]._repr_html_()
    assert "<th>gain</th>" in html
    assert "<th>iteration</th>" not in html
