import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from orchestrator.doctor import diagnose, iteration_sample
from orchestrator.doctor.iteration_sample import sample_iterations
from orchestrator.doctor.loss_anomalies import find_loss_anomalies
from orchestrator.errors import UsageError
from orchestrator.tables import row_blocks
from orchestrator.tables.query import Rows
from orchestrator.tables.summaries import summarize_by
from tests.orchestrator.doctor.runs import FALLING, costs, slower, training


def test_a_healthy_run_says_so_with_its_numbers() -> None:
    diagnosis = diagnose(training(3, loss=FALLING), costs((0, "ema", "on_update", 200, 0.1)))
    assert diagnosis.is_healthy
    assert diagnosis.figures.iterations == 200
    assert diagnosis.figures.step_s == pytest.approx(0.1, rel=0.01)
    assert diagnosis.figures.data_wait_share == pytest.approx(0.02, rel=0.02)
    assert "200 training iterations of 3 ranks" in str(diagnosis)
    assert "2.0% waiting for data, 0.2% for other ranks, 4.0% in hooks" in str(diagnosis)


def test_the_wait_for_other_ranks_is_a_share_of_all_ranks_time() -> None:
    """Rank 0 waits 20 ms of 120 for rank 1, which waits for nobody; a rank alone has no such
    share."""
    figures = diagnose(training(2, change=slower("forward_s", 1, 0.02))).figures
    assert figures.all_reduce_wait_share == pytest.approx(0.5 * 20 / 120, rel=0.02)
    assert diagnose(training(1)).figures.all_reduce_wait_share is None


def test_most_serious_finding_comes_first() -> None:
    stats = training(2, change=slower("forward_s", 1, 0.02), loss=FALLING)
    diagnosis = diagnose(stats, costs((0, "plots", "on_step", 200, 1.0)))
    assert [finding.kind for finding in diagnosis.findings] == ["straggler", "hook"]
    weights = [finding.weight for finding in diagnosis.findings]
    assert weights == sorted(weights, reverse=True)


def test_every_finding_has_its_query_and_advice_and_is_plain_data() -> None:
    stats = training(
        2, change=slower("forward_s", 1, 0.02), loss=FALLING, system_memory_percent=99.0
    )
    diagnosis = diagnose(stats, costs((0, "plots", "on_step", 200, 9.0)))
    assert {finding.kind for finding in diagnosis.findings} == {"straggler", "hook", "memory"}
    for finding in diagnosis.findings:
        assert finding.query
        assert finding.advice
        json.dumps(asdict(finding))


def test_queries_of_findings_run() -> None:
    stats = training(
        2,
        400,
        slower("forward_s", 1, 0.02),
        loss=np.where(np.arange(400) == 300, np.nan, np.linspace(2, 1, 400))[:, None],
        system_memory_percent=99.0,
    )
    stats["data_wait_s"] += 0.1
    stats["checkpoint_s"] = 0.02
    stats["other_s"] += 0.1
    findings = diagnose(stats).findings
    run = SimpleNamespace(stats=stats)
    assert {finding.kind for finding in findings} == {
        "straggler",
        "memory",
        "loss",
        "data",
        "checkpoint",
        "spans",
    }
    for finding in findings:
        shown = eval(finding.query, {"run": run})
        assert len(shown)


def test_a_table_from_elsewhere_needs_few_columns() -> None:
    stats = training(2, change=slower("forward_s", 1, 0.02))[
        ["rank", "phase", "iteration", "step_s", "forward_s", "backward_s"]
    ]
    assert sorted(finding.kind for finding in diagnose(stats).findings) == ["straggler"]
    for name in ("rank", "phase", "iteration"):
        with pytest.raises(UsageError, match=f"there is no column '{name}'"):
            diagnose(stats.drop(columns=name))


def test_a_loss_that_is_not_finite_comes_before_any_cost_of_time() -> None:
    stats = training(1, loss=np.full((200, 1), np.nan))
    diagnosis = diagnose(stats, costs((0, "(loop)", "save", 4, 60.0)))
    assert [finding.kind for finding in diagnosis.findings] == ["loss", "checkpoint"]


def test_a_run_too_short_to_say_where_its_time_goes() -> None:
    """15 iterations of 12 ms, beside which saving took 0.25 s."""
    stats = training(1, 15)
    times = [name for name in stats if name.endswith("_s")]
    stats[times] *= 0.012 / stats["step_s"].iloc[0]
    saving = costs((0, "(loop)", "save", 1, 0.25))
    diagnosis = diagnose(stats, saving)
    assert diagnosis.findings == ()
    assert not diagnosis.is_healthy
    assert "15 training iterations of 1 rank took too little time" in str(diagnosis)
    for timed in (training(1, 15), training(1, 25)):
        assert "took too little time" not in str(diagnose(timed, saving)), "1.5 s, or 25 iterations"


def test_one_iteration_has_no_plural() -> None:
    assert str(diagnose(training(1, 1), costs())).startswith("1 training iteration of 1 rank")


def test_a_column_may_have_the_name_of_a_number_that_is_computed() -> None:
    stats = training(2, loss=FALLING)
    more = stats.assign(**dict.fromkeys(("rows", "ranks", "first", "last", "bad", "all"), 1.0))
    assert diagnose(more) == diagnose(stats)
    for key in ("rank", "node", "phase"):
        assert summarize_by(key, Rows.wrap(more))["rows"].equals(
            summarize_by(key, Rows.wrap(stats))["rows"]
        )


def test_a_table_without_times_or_rows_says_too_little() -> None:
    columns = ["rank", "node", "phase", "epoch", "iteration", "step"]
    untimed = diagnose(training(2)[columns])
    assert "nothing was timed" in str(untimed)
    assert untimed.verdict == "no times to diagnose"
    assert str(diagnose(pd.DataFrame(columns=columns))) == "no training iteration was recorded"


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (np.nan, "not finite"),
        (np.inf, "not finite"),
        (2.3026, "unchanged"),
        (np.geomspace(1, 50, 200)[:, None], "diverged"),
    ],
)
def test_a_run_that_does_not_learn_is_not_healthy(loss: Any, problem: str) -> None:
    diagnosis = diagnose(training(2, loss=loss))
    assert not diagnosis.is_healthy
    assert (diagnosis.findings[0].kind, diagnosis.findings[0].numbers["problem"]) == (
        "loss",
        problem,
    )


@pytest.mark.parametrize(
    "loss",
    [
        -np.linspace(1, 30, 200)[:, None],
        np.random.default_rng(0).lognormal(0, 1, (200, 2)),
        FALLING,
    ],
)
def test_a_loss_that_falls_or_is_noisy_is_none_of_these(loss: Any) -> None:
    assert diagnose(training(2, loss=loss)).is_healthy


def test_categories_are_taken_as_the_tables_have_them() -> None:
    stats = training(2, change=slower("forward_s", 1, 0.02)).astype(
        {"phase": "category", "node": "category"}
    )
    assert [finding.numbers["rank"] for finding in diagnose(stats).findings] == [1]


def loss(ranks: int = 3, iterations: int = 200) -> np.ndarray:
    draw = np.random.default_rng(2)
    return np.linspace(2, 1, iterations)[:, None] + 0.02 * draw.standard_normal((iterations, ranks))


def test_a_loss_that_is_recorded_only_in_some_iterations_is_no_finding() -> None:
    table = pa.Table.from_pandas(training(3, loss=loss()), preserve_index=False)
    some = pc.if_else(pc.less(pc.bit_wise_and(table["iteration"], 3), 1), table["loss"], None)
    assert not [
        *find_loss_anomalies(
            Rows.wrap(table.set_column(table.column_names.index("loss"), "loss", some))
        )
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_has_its_first_iteration_and_ranks(value: float) -> None:
    values = loss()
    values[120:, 1] = value
    values[121:] = value
    (finding,) = find_loss_anomalies(Rows.wrap(training(3, loss=values)))
    assert (
        finding.numbers["iteration"],
        finding.numbers["ranks"],
        finding.numbers["iterations"],
    ) == (121, [1], 80)
    assert finding.weight > 1, "more than any share of time"
    assert "hookyard samples RUN --where 'iteration = 121' --rank 1" in finding.advice


@pytest.mark.parametrize(
    ("bad", "problems"),
    [
        (slice(150, None), ["not finite"]),
        (slice(20, 21), ["not finite", "diverged"]),
    ],
    ids=["diverges until it is not finite", "diverges without it"],
)
def test_divergence_that_ends_in_no_finite_loss_is_one_finding(
    bad: slice, problems: list[str]
) -> None:
    values = np.repeat(np.linspace(1.0, 90.0, 200)[:, None], 2, axis=1)
    values[bad] = np.inf
    found = find_loss_anomalies(Rows.wrap(training(2, loss=values)))
    assert [finding.numbers["problem"] for finding in found] == problems


@pytest.mark.parametrize("ranks", [(4, 2), (2, 4)], ids=["fewer", "more"])
def test_course_of_the_loss_goes_on_with_another_number_of_ranks(ranks: tuple[int, int]) -> None:
    """A loss of 1, and of 100 once the ranks have changed."""
    first = training(ranks[0], loss=1.0)
    then = training(ranks[1], loss=100.0)
    both = pd.concat([first, then.assign(iteration=then["iteration"] + 200)])
    (finding,) = find_loss_anomalies(Rows.wrap(both))
    numbers = finding.numbers
    assert (numbers["problem"], numbers["began"], numbers["ended"]) == ("diverged", 1, 100)
    assert numbers["iterations"] == 400


def resized(before: tuple[int, int], after: tuple[int, int]) -> pd.DataFrame:
    """Ranks and iterations before and after a change of the number of ranks. Rank 1 becomes slow
    with it."""
    first = training(before[0], before[1])
    then = training(after[0], after[1], change=slower("forward_s", 1, 0.02))
    return pd.concat([first, then.assign(iteration=then["iteration"] + before[1])])


def test_ranks_that_stay_are_compared_over_the_whole_run() -> None:
    """Ranks 2 and 3 trained in 100 of 1,100 iterations."""
    diagnosis = diagnose(resized((4, 100), (2, 1000)))
    (finding,) = diagnosis.findings
    assert (finding.numbers["rank"], finding.numbers["span"]) == (1, "forward_s")
    assert finding.numbers["lost_s"] == pytest.approx(0.02 * 1000 / 1100, rel=0.05)
    assert diagnosis.figures.compared_share is None


def test_share_of_the_iterations_that_all_compared_ranks_have_is_told() -> None:
    """Ranks 2 and 3 trained in 1,000 of 1,100 iterations."""
    figures = diagnose(resized((4, 1000), (2, 100))).figures
    assert figures.compared_share == pytest.approx(1000 / 1100)
    assert "(seen in 90.9% of the iterations)" in str(figures)


def of_several(monkeypatch: pytest.MonkeyPatch, together: int, rows: int, numbers: int) -> None:
    """From now on so many iterations are a block, in a table of so many rows and columns of
    numbers."""
    monkeypatch.setattr(row_blocks, "MAX_ROWS_AS_BLOCKS", 0)
    monkeypatch.setattr(row_blocks, "MAX_STORED_NUMBERS", 4 * rows * numbers // together)


def test_diagnosis_of_blocks_equals_that_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow rank, two long hook calls, a NaN loss, and memory that grows and is nearly full; in
    blocks of rows."""
    monkeypatch.setattr(iteration_sample, "MAX_ITERATIONS", 200)
    stats = training(4, 400, change=slower("data_wait_s", 2, 0.03))
    grown = {
        "rss_bytes": 1e9 + 1e6 * stats["iteration"],
        "loss": np.where(stats.index == 99, np.nan, 1.0 + stats["rank"]),
    }
    stats = stats.assign(**grown)
    stats.loc[
        stats["iteration"].isin([100, 300]) & (stats["rank"] == 1), ["hooks_s", "step_s"]
    ] += 9.0
    whole = diagnose(stats)
    of_several(monkeypatch, 7, len(stats), len(Rows.wrap(stats).numbers) + 1)
    found = diagnose(stats)
    for finding, expected in zip(found.findings, whole.findings, strict=True):
        assert (finding.kind, finding.numbers.get("rank")) == (
            expected.kind,
            expected.numbers.get("rank"),
        )
        assert finding.weight == pytest.approx(expected.weight, rel=0.05)
    assert {one.kind for one in found.findings} == {"straggler", "loss", "memory"}
    assert found.figures.to_dict() == pytest.approx(whole.figures.to_dict())


ITERATIONS = 4000
EVERY_40TH = dict.fromkeys(range(17, ITERATIONS, 40), 0.05)
FAULTS = {
    "chronic": ("forward_s", 0.01),
    "drifting": ("data_wait_s", np.linspace(0, 0.03, ITERATIONS)),
    "stalls": ("optimizer_s", EVERY_40TH),
}


@pytest.fixture
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_sample, "MAX_ITERATIONS", 1000)


@pytest.mark.parametrize("pattern", FAULTS)
def test_straggler_is_found_in_blocks_as_in_all_rows(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    span, seconds = FAULTS[pattern]
    stats = training(4, ITERATIONS, change=slower(span, 2, seconds))
    (whole,) = diagnose(stats).findings
    monkeypatch.setattr(iteration_sample, "MAX_ITERATIONS", 1000)
    found = diagnose(stats)
    (part,) = found.findings
    assert 0.25 <= found.figures.compared_share < 0.26
    assert "in their own work (seen in 25." in str(found)
    for name in ("rank", "span", "pattern"):
        assert part.numbers[name] == whole.numbers[name]
    assert part.numbers["lost_s"] == pytest.approx(whole.numbers["lost_s"], rel=0.1)


@pytest.mark.usefixtures("short_look")
def test_steps_of_several_iterations_are_whole_where_a_stretch_begins() -> None:
    """Of four micro-batches each: work of a step is four times that of an iteration in every
    stretch."""
    stats = training(4, ITERATIONS, change=slower("forward_s", 2, 0.01))
    stats["step"] = stats["iteration"] // 4
    found = diagnose(stats)
    assert found.figures.compared_share < 0.27
    (finding,) = found.findings
    assert (finding.numbers["rank"], finding.numbers["span"]) == (2, "forward_s")
    assert finding.numbers["lost_s"] == pytest.approx(0.04, rel=0.05)


def test_a_run_that_is_not_long_is_looked_at_whole() -> None:
    stats = training(2, 100)
    sample = sample_iterations(Rows.wrap(pd.concat([stats, stats.assign(phase="val")])))
    pd.testing.assert_frame_equal(
        sample.rows[["rank", "iteration", "step_s"]],
        stats[["rank", "iteration", "step_s"]],
        check_dtype=False,
    )
    assert (sample.iterations, sample.ranks, sample.rows["iteration"].nunique()) == (100, 2, 100)
    fewer = sample_iterations(
        Rows.wrap(
            stats[(stats["iteration"] != 50) & ((stats["rank"] == 0) | (stats["iteration"] != 51))]
        )
    )
    assert (fewer.iterations, fewer.rows["iteration"].nunique()) == (99, 99)
