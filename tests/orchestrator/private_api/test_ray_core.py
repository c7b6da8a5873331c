"""The import path of Ray's workers, as a job's description has it; no Ray is started."""

from __future__ import annotations

import sys

import pytest
from ray.core.generated.common_pb2 import JobConfig

from orchestrator.private_api.ray_core import DriversImportPath


def told(*folders: str, on_this_machine: bool = False) -> list[str]:
    """What workers put in front, where Ray would have them put these folders."""
    job = DriversImportPath(on_this_machine=on_this_machine)
    job.set_ray_namespace("any")
    job._py_driver_sys_path.extend(folders)
    return list(JobConfig.FromString(job._serialize()).py_driver_sys_path)


def test_the_current_folder_is_no_worker_s_first_where_it_is_not_the_driver_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/env/bin", "/env/site-packages", "/study"])
    assert told("/env/bin", "/study") == ["/env/bin"]


@pytest.mark.parametrize("first", ["", "/study"])
def test_what_python_puts_first_for_the_driver_stays_first(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """A script's folder, or in a notebook the current one."""
    monkeypatch.setattr(sys, "path", [first, "/env/site-packages"])
    monkeypatch.setattr("os.getcwd", lambda: "/study")
    assert told("/study") == ["/study"]


def test_workers_on_the_driver_s_machine_have_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is put in front of those before it."""
    monkeypatch.setattr(sys, "path", ["/env/bin", "/env/site-packages", "/study"])
    workers = ["/lib/python"]
    for folder in told("/env/bin", "/study", on_this_machine=True):
        workers.insert(0, folder)
    assert workers == ["/env/bin", "/env/site-packages", "/study", "/lib/python"]
