from __future__ import annotations

from orchestrator.report.views.hooks import hooks
from tests.orchestrator.report.reading import tables_of
from tests.orchestrator.stats.insight.runs import costs, training


def test_the_ledger_has_the_costliest_first() -> None:
    rows = training(2)
    ledger = costs(
        (0, "ema", "on_update", 100, 0.1), (1, "ema", "on_update", 100, 0.3), (0, "checkpoint", "on_save", 2, 1.0)
    )
    total = rows["step_s"].sum()
    assert tables_of(hooks(ledger, total).content)["What each hook cost"][1:] == [
        ["checkpoint", "on_save", "2", "1 s", "500 ms", "0", f"{1 / total:.1%}"],
        ["ema", "on_update", "200", "400 ms", "2 ms", "1", f"{0.4 / total:.1%}"],
    ]


def test_without_a_ledger_it_says_so() -> None:
    assert "No hook was called" in str(hooks(costs(), 1.0).content)
