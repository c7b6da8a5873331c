import re

import pandas as pd
import pytest

from orchestrator.doctor.hook_costs import find_costly_hooks
from orchestrator.doctor.time_breakdown import (
    sum_times,
)
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import costs, training


def asked(stats: pd.DataFrame) -> tuple[Rows, pd.DataFrame]:
    rows = Rows.wrap(stats)
    return rows, sum_times(rows)


def test_a_hook_that_costs_is_named_with_its_event_and_costliest_rank() -> None:
    """200 iterations of 0.1 s are 20 s on each rank; rank 1 pays 2 s of them, 10 ms a call."""
    ledger = costs(
        (0, "plots", "on_step", 200, 1.0),
        (1, "plots", "on_step", 200, 2.0),
        (1, "ema", "on_update", 200, 0.1),
    )
    (finding,) = find_costly_hooks(asked(training(2))[1], ledger)
    assert [finding.kind, *map(finding.numbers.get, ("hook", "event", "rank"))] == [
        "hook",
        "plots",
        "on_step",
        1,
    ]
    assert finding.weight == pytest.approx(2 / 20, rel=0.02)
    assert finding.numbers["seconds_by_rank"] == {0: 1.0, 1: 2.0}
    assert "(200 calls, 10 ms each)" in finding.sentence


def test_the_every_that_takes_one_percent_is_proposed() -> None:
    """2 s of 20 s are 10 %, so ten times as rare. `ends` acts beside the iterations and `bare` has
    no `every`."""
    ledger = costs(
        (0, "layers", "on_forward", 20, 2.0),
        (0, "ends", "on_phase_end", 2, 2.0),
        (0, "bare", "on_step", 9, 2.0),
    ).assign(every=["100 steps", "1 epochs", None])
    advice = {
        finding.numbers["hook"]: finding.advice
        for finding in find_costly_hooks(asked(training(1))[1], ledger)
    }
    number = int(re.search(r"hooks.layers.every=(\d+) steps", advice["layers"])[1])  # type: ignore[index]  # the test
    assert number == pytest.approx(1000, rel=0.02)
    assert all("every" not in advice[hook] for hook in ("ends", "bare"))


def test_saving_between_phases_is_told_as_a_checkpoint() -> None:
    (finding,) = find_costly_hooks(asked(training(1))[1], costs((0, "(loop)", "save", 4, 6.0)))
    assert finding.kind == "checkpoint"
    assert finding.sentence.startswith("saving checkpoints between phases took 6 s, ")


def test_rank_is_named_only_beside_others() -> None:
    """The hook runs on rank 0, alone or beside a second rank."""
    ledger = costs((0, "ema", "on_update", 200, 6.0))
    alone, beside = (
        next(find_costly_hooks(asked(training(ranks))[1], ledger)).sentence for ranks in (1, 2)
    )
    assert "rank" not in alone
    assert beside.startswith("ema (on_update) took 6 s on rank 0, ")


def test_the_share_of_a_hook_between_iterations_is_of_all_time() -> None:
    """20 s of iterations, 60 s of saving and 20 s of validation hooks: 60 % and 20 %."""
    ledger = costs((0, "(loop)", "save", 4, 60.0), (0, "report", "on_report", 1, 20.0))
    findings = find_costly_hooks(asked(training(1))[1], ledger)
    shares = {finding.numbers["event"]: finding.weight for finding in findings}
    assert shares == pytest.approx({"save": 0.6, "on_report": 0.2}, rel=0.02)


def test_writing_in_the_background_is_no_cost() -> None:
    ledger = costs((0, "(loop)", "write", 4, 15.0))
    assert not list(find_costly_hooks(asked(training(1))[1], ledger))


@pytest.mark.parametrize("event", ["on_load", "on_start", "on_end", "on_exception"])
@pytest.mark.parametrize("hook", ["checkpoint", "plots"])
def test_a_cost_that_occurs_once_cannot_be_made_less_frequent(hook: str, event: str) -> None:
    """5 s beside 20 s of iterations are 20 % of the time."""
    (finding,) = find_costly_hooks(asked(training(1))[1], costs((0, hook, event, 1, 5.0)))
    assert finding.weight == pytest.approx(5 / 25, rel=0.02)
    assert finding.advice == ("this happens once per attempt, so longer training reduces its share")


@pytest.mark.parametrize("event", ["on_save", "on_saved"])
def test_an_upload_of_checkpoints_is_told_as_a_checkpoint(event: str) -> None:
    """5 s beside 20 s of iterations are 20 %, and 0.8 s are 4 %, below the limit of saving."""
    times = asked(training(1))[1]
    (finding,) = find_costly_hooks(times, costs((0, "upload", event, 4, 5.0)))
    assert finding.kind == "checkpoint"
    assert finding.advice == "save less often, or to faster storage"
    assert not list(find_costly_hooks(times, costs((0, "upload", event, 4, 0.8))))
