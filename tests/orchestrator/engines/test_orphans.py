from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.preflight import check_this_machine
from orchestrator.engines.orphans import Orphan, describe_orphans, find_orphans
from orchestrator.engines.ray_environment import connection_line


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[str]]:
    """A process by the name of an agent of Ray's, which no raylet has started."""
    with subprocess.Popen(["bash", "-c", "exec -a ray::RuntimeEnvAgent sleep 60"], text=True) as process:
        yield process
        process.kill()


def test_ray_process_without_a_raylet_is_an_orphan(agent: subprocess.Popen[str]) -> None:
    while Path(f"/proc/{agent.pid}/cmdline").read_bytes()[:5] != b"ray::":
        pass
    assert (agent.pid, "ray::RuntimeEnvAgent") in [(orphan.pid, orphan.name) for orphan in find_orphans()]
    agent.kill()
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert agent.pid not in [orphan.pid for orphan in find_orphans()], "nor as a zombie"


def test_orphans_are_reported_at_start_and_by_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [Orphan(7, "ray::DashboardAgent", 3 * 2**20), Orphan(8, "ray::RuntimeEnvAgent", 2**20)]
    told = (
        "2 unused processes of a Ray instance that died hold 4 MiB: ray::DashboardAgent (7), ray::RuntimeEnvAgent (8)"
    )
    assert describe_orphans(left) == told
    monkeypatch.setattr("orchestrator.engines.ray_environment.find_orphans", lambda: left)
    monkeypatch.setattr("orchestrator.cluster.preflight.find_orphans", lambda: left)
    assert connection_line(None).endswith(f"; {told}")
    (finding,) = [one for one in check_this_machine(str(tmp_path)).findings if "died" in one.what]
    assert (finding.what, finding.advice) == (told, "Nothing uses them: kill 7 8")
