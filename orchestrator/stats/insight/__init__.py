"""Insight: what the tables say of a run, in sentences with their numbers. Asks the rows, and knows pandas beside."""

from orchestrator.stats.insight.diagnosis import Diagnosis, diagnose, failure
from orchestrator.stats.insight.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose", "failure"]
