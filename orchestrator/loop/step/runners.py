"""The runners of iterations: which one trains a task, and the code of their loops."""

from torch.optim import Optimizer

from orchestrator.experiment.optim.closures import needs_closure
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.step.auto_microbatching import MicrobatchRunner
from orchestrator.loop.step.closure import ClosureRunner
from orchestrator.loop.step.inference_runner import InferenceRunner
from orchestrator.loop.step.training_iteration import IterationRunner
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.loop.step.turns import TurnRunner
from orchestrator.task import Task, has_turns

_RUNNERS = (IterationRunner, MicrobatchRunner, ClosureRunner, TurnRunner, InferenceRunner)
LOOP_CODE = frozenset(runner.get_loop_code() for runner in _RUNNERS)
"""Code objects of all runners' loops: a thread with one of them on its stack is in an iteration."""


def choose_runner(
    task: Task, experiment: Experiment, optimizer: Optimizer | None
) -> type[TrainingRunner]:
    """Return the runner that trains a task. `optimizer` is None if there are several."""
    if has_turns(type(task)):
        return TurnRunner
    if optimizer is not None and needs_closure(type(optimizer)):
        return ClosureRunner
    if experiment.accumulate == "auto":
        return MicrobatchRunner
    return IterationRunner
