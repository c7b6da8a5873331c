"""Loops that restore a checkpoint and do not train it: they evaluate it, or write its predictions.
Run in workers."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hooks.hook import Hook
from hooks.metrics.names import find_phase, get_kind
from hooks.state import Weights
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.building import MakeData, build_training
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.loop import HookedLoop
from orchestrator.loop.model.initial_weights import load_initial_weights
from orchestrator.loop.prediction import Prediction
from orchestrator.loop.report import Report
from orchestrator.loop.run_building import build_run
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.hooked_contents import EvaluationContents
from orchestrator.task import Task


def make_restored_run(
    task: Task,
    experiment: Experiment,
    hooks: Mapping[str, Hook],
    context: RunContext,
    make_data: MakeData = build_data,
) -> HookedRun:
    """Make a run, with a training, that restores the weights of a checkpoint but no optimizer;
    collective."""
    training = build_training(
        task,
        experiment,
        hooks,
        context,
        make_data=make_data,
        resumes=True,
        contents=EvaluationContents,
    )
    return build_run(training, experiment, context, training.plan)


class InferenceLoop(HookedLoop):
    """Loop that uses a restored checkpoint once, on data of a `kind`, `val` or `test`, and yields
    one report.

    Initial weights of the experiment, which were found at `origin`, replace the checkpoint's, and no
    averages are used. With `rewinds`, it starts from the random state of the run's own evaluation.
    `make_restored_run` makes the run.
    """

    def __init__(
        self,
        run: HookedRun,
        *,
        kind: str,
        rewinds: bool = True,
        origin: InitialWeights | None = None,
    ) -> None:
        super().__init__(run.training, [run])
        self._kind = kind
        self._rewinds = rewinds
        self._origin = origin

    def _begin(self) -> None:
        self.training.begin()
        if self.experiment.init:
            module = self.state.module
            lines = load_initial_weights(module, self.experiment, self.world, self._origin)
            self.state.evaluations = {"": Weights()}
            self.training.show(lines)

    def _produce_reports(self) -> Iterator[Report]:
        run = self.runs[0]
        self.state.metrics = {}
        run.cursor.forget_validations()
        run.cursor.end_validation()
        if self._rewinds:
            run.random_states.rewind()
        self._infer()

        report = run.report(is_final=True)
        # Hooks may restore training metrics from the checkpoint; leave them out.
        metrics = {
            name: value
            for name, value in report.metrics.items()
            if find_phase(name) in ("", self._kind)
        }
        yield replace(report, metrics=metrics)

    @abstractmethod
    def _infer(self) -> None:
        """Run the model on the data; collective."""


class EvaluationLoop(InferenceLoop):
    """Loop that evaluates a restored checkpoint on all phases of a kind."""

    def _begin(self) -> None:
        run = self.runs[0]
        run.evaluation.check_data(run.phases)
        super()._begin()
        run.evaluation.check_phase_names()

    def _infer(self) -> None:
        data = self.training.data
        if not data.phase_names(self._kind):
            raise TaskError(
                f"data() of {type(self.task).__name__} gives {', '.join(data.phases)}, and no"
                f" {self._kind} to evaluate"
            )
        self.runs[0].evaluation.evaluate(self._kind)


class PredictionLoop(InferenceLoop):
    """Loop that writes the predictions of a restored checkpoint.

    It uses the weights of the hook `provider`; empty for the raw ones. The other arguments are those
    of `InferenceLoop`.
    """

    def __init__(
        self,
        run: HookedRun,
        prediction: Prediction,
        *,
        provider: str,
        rewinds: bool,
        origin: InitialWeights | None,
    ) -> None:
        super().__init__(run, kind=get_kind(prediction.phase), rewinds=rewinds, origin=origin)
        self._prediction = prediction
        self._provider = provider

    def _infer(self) -> None:
        state = self.state
        provided = [
            weights for weights in state.evaluations.values() if weights.provider == self._provider
        ]
        state.evaluations = {"": provided[0] if provided else Weights()}
        self._prediction.write()
