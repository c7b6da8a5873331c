"""The optimizers of an experiment, one or several, each with its scheduler."""

from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import list_patterns
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.sections.experiment import Experiment


def list_optimizations(experiment: Experiment) -> dict[OptimizerName, Optimization]:
    """Return the optimizers and their schedulers by name; a single one has the name None."""
    if not experiment.optimizers:
        return {None: Optimization(None, experiment.optimizer, experiment.scheduler)}
    return {
        name: Optimization(
            name,
            Component(type=entry.type, **entry.arguments),
            entry.scheduler,
            tuple(list_patterns(entry.params or ())),
        )
        for name, entry in experiment.optimizers.items()
    }
