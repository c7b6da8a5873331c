"""Insight: findings on a run, computed from its tables, in sentences with their numbers."""

from orchestrator.stats.insight.diagnosis import (
    Diagnosis,
    diagnose,
    diagnose_run,
    make_failure_finding,
)
from orchestrator.stats.insight.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose", "diagnose_run", "make_failure_finding"]
