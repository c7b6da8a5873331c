"""A stored checkpoint that is evaluated, or whose predictions are written, on an engine. Used in the
driver."""

from dataclasses import dataclass, replace

from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.metadata import EngineName, Evaluated
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import read_launch_metadata
from orchestrator.engines.assignment import EvaluationTarget
from orchestrator.errors import UsageError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import to_yaml
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.evaluation_words import format_command
from orchestrator.runs.launch import collect_launch_metadata, drive
from orchestrator.runs.launch_checks import check_can_run


@dataclass(frozen=True, kw_only=True)
class InferenceJob:
    """A checkpoint to evaluate or to predict with, and its experiment."""

    run: RunFolder
    subject: Evaluated
    experiment: CheckedExperiment
    name: str
    """Name of its folder, which gets a number if it is taken."""
    target: EvaluationTarget
    has_rank_override: bool
    """True if the number of ranks was set for this job."""

    def start(self, engine: EngineName | None, address: str | None, *, local: bool) -> RunFolder:
        """Run it on an engine, by default the run's, and return its folder. Raises RunError if it
        fails."""
        chosen = self._choose_engine(engine, address, local=local)
        check_can_run(self.experiment, chosen)
        launch = replace(collect_launch_metadata(self.experiment, chosen), evaluates=self.subject)
        target = self.target if chosen.is_local else self.target.pickle_data(chosen.address)
        root = self.run.storage / EVALUATIONS
        with taking_name(RunFolder(root, self.name), "number") as (folder, lease):
            text = to_yaml(self.experiment)
            create_run(root, folder.name, text, launch, source=self.experiment.source)
            command = format_command(self.subject, self.run)
            drive(folder, self.experiment, chosen, lease, resume_with=command, target=target)
        return folder

    def _choose_engine(
        self, name: EngineName | None, address: str | None, *, local: bool
    ) -> EngineChoice:
        """Return the engine that was asked for, or that of the run; raises UsageError if it cannot
        have the number of ranks that was asked for."""
        if name or local:
            chosen = EngineChoice.make(name, address, local=local)
        else:
            chosen = EngineChoice.of_run(read_launch_metadata(self.run), address)
        ranks = self.experiment.workers.max_count
        if chosen.is_local and self.has_rank_override and ranks > 1:
            raise UsageError(
                f"{ranks} workers need the engine gang or train; a local {self.subject.kind} (engine"
                " in-process) has only one"
            )
        return chosen
