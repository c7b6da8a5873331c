from orchestrator.disk.attempts import Attempt, measure_training_seconds


def test_training_time_is_from_the_start_of_each_attempt_to_its_last_report() -> None:
    """The clock was set back in attempt 2, and attempt 3 made no report."""
    attempts = [
        Attempt(0, started="2026-01-01T00:00:00Z"),
        Attempt(1, started="2026-01-01T00:01:00Z"),
        Attempt(2, started="2026-01-01T00:02:00Z"),
        Attempt(3, started="2026-01-01T00:03:00Z"),
        Attempt(4),
    ]
    reports = [
        {"attempt": 0, "time": "2026-01-01T00:00:10Z"},
        {"attempt": 0, "time": "2026-01-01T00:00:20Z"},
        {"attempt": 1, "time": "2026-01-01T00:01:05Z"},
        {"attempt": 2, "time": "2026-01-01T00:01:59Z"},
        {"attempt": 4, "time": "2026-01-01T00:05:00Z"},
        {"step": 7},
    ]
    assert measure_training_seconds(attempts, reports) == 20 + 5
    assert measure_training_seconds([], []) == 0
