"""The task and the hooks of a checked experiment are made once, and are for its first run alone."""

import copy
import pickle

import pytest

from orchestrator import ConfigError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import check_experiment
from tests.tasks import described


def test_each_run_of_an_experiment_gets_its_own_task_and_hooks() -> None:
    experiment = described()

    first = experiment.take_resolved()
    second = experiment.take_resolved()

    assert first.task is not second.task
    assert first.hooks.keys() == second.hooks.keys()
    assert all(first.hooks[name] is not second.hooks[name] for name in first.hooks)


def test_copy_of_an_experiment_shares_no_hooks_with_it() -> None:
    experiment = described()
    copies = [
        copy.copy(experiment),
        copy.deepcopy(experiment),
        pickle.loads(pickle.dumps(experiment)),
    ]

    taken = [each.take_resolved().hooks["checkpoint"] for each in (experiment, *copies)]

    assert len({id(hook) for hook in taken}) == len(taken)
    assert all(each == experiment for each in copies)


def test_hooks_that_were_read_are_those_of_the_run() -> None:
    experiment = described()

    read = experiment.get_resolved()

    assert experiment.take_resolved().hooks["checkpoint"] is read.hooks["checkpoint"]


def test_copy_with_other_values_is_checked_again() -> None:
    experiment = described()

    longer = experiment.model_copy(update={"epochs": 9})
    wrong = experiment.model_copy(update={"hooks": {"ema": {"decay": 2}}})

    assert not isinstance(longer, CheckedExperiment)
    assert check_experiment(longer).epochs == 9
    with pytest.raises(ConfigError, match=r"hooks\.ema\.decay: must be less than 1, got 2"):
        check_experiment(wrong)
