import pytest

from orchestrator.report.trial_selection import describe_lines, select_trials


@pytest.mark.parametrize(("count", "most"), [(5, 5), (9, 4), (1000, 10), (11, 10)])
def test_selection_has_the_best_half_and_an_even_rest(count: int, most: int) -> None:
    names = [str(place) for place in range(count)]
    chosen = select_trials(names, most)
    assert len({*chosen}) == len(chosen) == min(count, most)
    assert (chosen[: most // 2], chosen[-1]) == (names[: most // 2], names[-1])
    assert ("are drawn" in describe_lines("0", len(chosen), count)) == (count > most)
