"""A user's own folders in the processes that Ray starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_own_folders import hookyard, study_in

pytestmark = pytest.mark.ray


def test_a_user_s_folders_may_have_any_name_in_ray_s_workers_too(tmp_path: Path) -> None:
    """Ray puts the current folder first on its workers' import path, where `hooks` and `torch` would hide what is installed."""
    told = hookyard(tmp_path, study_in(tmp_path), "run", "experiments/t.yaml")
    assert told.returncode == 0, told.stderr
