"""Predictions of stored checkpoints, in a folder of the run. Used in the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from hooks.hook import Hook
from hooks.metrics.names import get_kind
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import PredictionTarget
from orchestrator.engines.script_classes import pickle_dataset
from orchestrator.errors import UsageError
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.evaluation import EvaluationJob
from orchestrator.user_code.named_classes import find_function


@dataclass(frozen=True)
class PredictionJob(EvaluationJob):
    """A checkpoint whose predictions to write, and its experiment."""

    provider: str = ""
    data: Any = None

    verb: ClassVar[Literal["evaluate", "predict"]] = "predict"
    participle: ClassVar[str] = "used to predict"

    @classmethod
    def prepare_for(
        cls,
        run: RunFolder,
        data: Any,
        label: str,
        phase: str,
        overrides: Iterable[str],
        workers: int | None,
    ) -> PredictionJob:
        """Prepare what `Run.predict` runs; raises its errors."""
        has_other_data = data is not None
        prepared = cls.prepare(run, label, phase, overrides, workers, has_other_data=has_other_data)
        name = ""
        if isinstance(data, str):
            find_function(data, "data")
            name = data
        elif has_other_data:
            name = f"a {type(data).__name__}"
        provider = open_checkpoints(run).find_evaluated_weights(label).rpartition("/")[0]
        subject = replace(prepared.subject, data=name)
        return replace(prepared, subject=subject, provider=provider, data=data)

    @classmethod
    def _check_phase(cls, phase: str) -> None:
        if get_kind(phase) not in ("val", "test"):
            raise UsageError(f"phase must be val, test or a set of these, got {phase!r}")

    @classmethod
    def _runs_hook(cls, hook: Hook) -> bool:
        # There is no loss, and the data may have no targets.
        return hook.evaluates and not hook.handles("on_loss")

    def _make_target(self, engine: EngineChoice) -> PredictionTarget:
        target = super()._make_target(engine)
        data = self.data
        if not engine.is_local and data is not None and not isinstance(data, str):
            # Workers find the modules of its classes once they know the experiment.
            data = pickle_dataset(data, engine.address)
        attempts = self.run.read_attempts()
        return PredictionTarget(
            target.checkpoint,
            target.phase,
            target.rewinds,
            self.provider,
            data,
            attempts[-1].epoch_iterations if attempts else None,
        )

    def _propose_name(self) -> str:
        subject = self.subject
        place = re.sub(r"\W+", "-", subject.data or subject.phase)
        return f"predict-{subject.checkpoint}-{place}"
