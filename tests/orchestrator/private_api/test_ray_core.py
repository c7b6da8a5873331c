"""The import path of Ray's workers in the config of a job, without Ray."""

import sys

import pytest
from ray.core.generated.common_pb2 import JobConfig

from orchestrator.private_api.ray_core import DriversImportPath


def worker_path(*folders: str, on_this_machine: bool = False) -> list[str]:
    """Return the folders that workers put first, instead of those of Ray."""
    job = DriversImportPath(on_this_machine=on_this_machine)
    job.set_ray_namespace("any")
    job._py_driver_sys_path.extend(folders)
    return list(JobConfig.FromString(job._serialize()).py_driver_sys_path)


@pytest.mark.parametrize(
    ("driver", "ray", "expected"),
    [
        (["/env/bin", "/env/site-packages", "/study"], ["/env/bin", "/study"], ["/env/bin"]),
        # A script's folder, or in a notebook the current folder.
        (["", "/env/site-packages"], ["/study"], ["/study"]),
        (["/study", "/env/site-packages"], ["/study"], ["/study"]),
    ],
)
def test_workers_put_only_the_driver_s_first_folder_first(
    driver: list[str], ray: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", driver)
    monkeypatch.setattr("os.getcwd", lambda: "/study")
    assert worker_path(*ray) == expected


def test_workers_on_the_driver_s_machine_have_the_driver_s_import_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["/env/bin", "/env/site-packages", "/study"])
    path = ["/lib/python"]
    for folder in worker_path("/env/bin", "/study", on_this_machine=True):
        path.insert(0, folder)
    assert path == ["/env/bin", "/env/site-packages", "/study", "/lib/python"]
