"""Times in the files of a run: UTC, in the format of ISO 8601."""

from datetime import UTC, datetime


def format_now() -> str:
    """Return the current time, to the millisecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def seconds_at(moment: str) -> float:
    """Convert an ISO time to Unix time; raises ValueError."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{moment!r} is not a time") from None
