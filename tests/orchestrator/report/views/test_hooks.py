from orchestrator.report.views.hooks import render_hooks
from tests.orchestrator.doctor.runs import costs, training
from tests.orchestrator.report.reading import tables_of


def test_the_costliest_hook_comes_first() -> None:
    rows = training(2)
    ledger = costs(
        (0, "ema", "on_update", 100, 0.1),
        (1, "ema", "on_update", 100, 0.3),
        (0, "checkpoint", "on_save", 2, 1.0),
    )
    total = rows["step_s"].sum()
    assert tables_of(render_hooks(ledger, total).content)["Cost of each hook"][1:] == [
        ["checkpoint", "on_save", "2", "1 s", "500 ms", "0", f"{1 / (total + 1):.1%}"],
        ["ema", "on_update", "200", "400 ms", "2 ms", "1", f"{0.4 / total:.1%}"],
    ]
    assert "No hook was called" in render_hooks(costs(), 1.0).content
