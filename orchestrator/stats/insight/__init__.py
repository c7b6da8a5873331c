"""Insight: what the tables say of a run, in sentences with their numbers. Asks the rows, and knows pandas beside."""

from orchestrator.stats.insight.diagnosis import Diagnosis, diagnose, failure
from orchestrator.stats.insight.verdict import Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose", "failure"]
