"""Which trials run, and the last report of each that has not ended."""

from orchestrator.sweeps.active_reports import ActiveReports
from tests.orchestrator.sweeps.search.draws import previous_trial


def test_the_last_report_is_kept_until_the_end() -> None:
    reports = [{"val/score": 0.1, "samples": 4}, {"val/score": 0.2, "samples": 8}]
    previous = {
        0: previous_trial({}, "finished", reports, name="a"),
        1: previous_trial({}, "interrupted", reports, name="b"),
    }
    active = ActiveReports(previous)
    assert active.list_active() == []
    for number in (1, 2):
        active.begin(number)
    active.add_report(2, {"val/score": 0.5})
    assert active.list_active() == [1, 2]

    active.interrupt(1)
    assert (active.list_active(), active.is_active(1)) == ([2], False)
    assert active.end(0) is None, "it had ended before"
    ends = [active.end(number) for number in (1, 2, 2)]
    assert [end and end["val/score"] for end in ends] == [0.2, 0.5, None]
    assert active.list_active() == []
