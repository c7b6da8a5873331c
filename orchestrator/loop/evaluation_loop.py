"""The loop of an evaluation: a stored checkpoint is measured as the hooked loop measures what it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hooks.metrics.names import phase_of
from hooks.state import Weights
from orchestrator.checkpoint.position import Stage
from orchestrator.config.text.source import InitialWeights
from orchestrator.errors import RunError
from orchestrator.loop.loop import Loop
from orchestrator.loop.report import Report
from orchestrator.loop.state.hooked_contents import WeightsAlone


class EvaluationLoop(Loop):
    """Goes once through all phases of a `kind`, `val` or `test`, with the checkpoint that was put back, and yields one
    report. Worker process.

    Where the experiment names weights to begin with, these take the place of all that the checkpoint was validated
    with. Raises RunError where the task has no such data.
    """

    contents = WeightsAlone

    def __init__(
        self, *arguments: Any, kind: str, rewinds: bool = True, origin: InitialWeights | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more, resumes=True)
        self._kind, self._rewinds, self._origin = kind, rewinds, origin

    def _begin(self) -> None:
        super()._begin()
        if self.experiment.init:
            told = self._begin_with_weights(self.state.module, self._origin)
            self.state.evaluations = {"": Weights()}
            for line in told if self.world.is_master else ():
                self.state.show(line)

    def _rounds(self) -> Iterator[Report]:
        if not self.data.phase_names(self._kind):
            raise RunError(
                f"data() of {type(self.task).__name__} gives {', '.join(self.data.phases)}, and no {self._kind} to"
                " evaluate"
            )
        self.state.metrics, self.cursor.eval_iterations, self.cursor.stage = {}, {}, Stage.VALIDATED
        if self._rewinds:
            self.saving.rewind_randomness()
        self.evaluation.run(self._kind)
        report = self._report(last=True)
        # What a hook had of the training since its last report came with the checkpoint.
        yield replace(
            report,
            metrics={name: value for name, value in report.metrics.items() if phase_of(name) in ("", self._kind)},
            final=True,
        )
