"""A user's own folders in the processes that Ray starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_own_folders import hookyard, study_in

pytestmark = pytest.mark.ray

SENT = '''

class Sent:
    """Found by its module's name where it is unpickled."""


def kind_of(sent):
    from hooks import Hook

    return type(sent).__name__ + Hook.__module__


class WithTasks(T):
    def data(self):
        assert ray.get(ray.remote(num_cpus=0)(kind_of).remote(Sent())) == "Senthooks.hook"
        return super().data()
'''
"""A task whose own tasks of Ray's import its module, as Ray Data's do."""


def test_workers_import_from_user_folders_of_any_name(tmp_path: Path) -> None:
    """Ray puts the current folder first on its workers' import path, where `hooks` and `torch` would hide what is
    installed."""
    study = study_in(tmp_path)
    task = (study / "experiments/t.py").read_text()
    (study / "experiments/t.py").write_text(
        task.replace("from torch import Tensor", "import ray\nfrom torch import Tensor") + SENT
    )
    told = hookyard(tmp_path, study, "run", "experiments/t.yaml", "task=experiments.t:WithTasks")
    assert told.returncode == 0, told.stderr
