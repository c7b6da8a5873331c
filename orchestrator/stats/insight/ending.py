"""How a run ended, where that is the first thing to say of it."""

from __future__ import annotations

from orchestrator.stats.insight.verdict import Verdict

_WEIGHT = 2.0
"""More than any share of time: what failed comes first."""


def failure(status: str, error: str | None) -> Verdict | None:
    """The verdict on a run that failed or lost its driver; None of one that did not."""
    if status == "failed":
        words = (error or "it does not say why").strip().splitlines()[0]
        sentence, advice = f"the run failed: {words}", "mend what it says, then hookyard resume RUN; its log has the traceback"
    elif status == "lost":
        sentence, advice = "the run is dead: its driver is gone, and nobody has written down how it ended", "hookyard resume RUN"
    else:
        return None
    return Verdict("failure", sentence, {"status": status}, "hookyard show RUN", advice, _WEIGHT)
