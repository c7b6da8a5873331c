"""Findings about a run, computed from its tables, in sentences with their numbers."""

from orchestrator.doctor.diagnosis import Diagnosis, diagnose, diagnose_run
from orchestrator.doctor.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose", "diagnose_run"]
