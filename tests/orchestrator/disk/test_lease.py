"""A run has one driver. Hosts that cannot be seen are told by a name in their claims, time by the
dates of files."""

import json
import os
import subprocess
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.disk import lease
from orchestrator.disk.lease import FOLDER, LEASE_TTL_S, Claim, Lease, State, is_driven, read_claims
from orchestrator.disk.process import Process
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import LeaseLost, UsageError
from orchestrator.storage import Storage
from tests.manual_clock import ManualClock
from tests.orchestrator.runs.written import change


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "run")


def put(
    run: Storage,
    driver: Process,
    state: State = "held",
    *,
    age_s: float = 0,
    name: str = "5",
    fencing_token: int = 1,
) -> Path:
    """A claim of another driver, which gave its last sign so long ago."""
    claim = Claim(f"{name}.json", state, driver, "2026-01-01T00:00:00Z", fencing_token)
    (run / FOLDER).write(claim.name, json.dumps(asdict(claim)))
    file = Path(str(run), FOLDER, f"{name}.json")
    if run.local:
        moment = file.stat().st_mtime - age_s
        os.utime(file, (moment, moment))
    return file


def elsewhere() -> Process:
    return replace(Process.current(), host="elsewhere")


def gone() -> Process:
    """A driver of this machine that was killed."""
    process = subprocess.Popen(["true"])
    process.wait()
    return replace(Process.current(), pid=process.pid, process_started="1")


def test_run_has_one_driver_until_it_leaves(storage: Storage) -> None:
    assert is_driven(storage) is None
    with Lease(storage):
        assert is_driven(storage)
        with (
            pytest.raises(
                UsageError,
                match=rf"run is still running \(process {os.getpid()}, since 2.*Z\); stop it first",
            ),
            Lease(storage),
        ):
            pass
        assert len(read_claims(storage)) == 1, "who was refused leaves nothing"
    assert is_driven(storage) is False
    with Lease(storage) as second:
        assert [
            (claim.name, claim.state, claim.fencing_token) for claim in read_claims(storage)
        ] == [(second.name, "held", 2)]


def test_driver_elsewhere_is_dead_without_heartbeats(folder: Storage) -> None:
    put(folder, elsewhere(), age_s=LEASE_TTL_S - 10)
    with (
        pytest.raises(
            UsageError,
            match=rf"driven by process \d+ on elsewhere since 2026.*dead {LEASE_TTL_S:g} s after.*--force-lease",
        ),
        Lease(folder),
    ):
        pass
    put(folder, elsewhere(), age_s=LEASE_TTL_S + 10)
    with Lease(folder):
        assert len(read_claims(folder)) == 1


def test_heartbeats_are_dated_by_the_clock_of_the_store(
    folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are an hour old by this machine's clock; the last heartbeat is as new as a file
    written now."""
    write = Storage.write

    def dated(self: Storage, name: str, data: bytes | str) -> None:
        write(self, name, data)
        if self.local and (self.local / name).parent.name == FOLDER:
            moment = (self.local / name).stat().st_mtime - 3600
            os.utime(self.local / name, (moment, moment))

    monkeypatch.setattr(Storage, "write", dated)
    put(folder, elsewhere(), age_s=0)
    with pytest.raises(UsageError, match="on elsewhere"), Lease(folder):
        pass


def test_store_without_dates_needs_force(storage: Storage) -> None:
    put(storage, elsewhere())
    with pytest.raises(UsageError, match="--force-lease"), Lease(storage):
        pass
    with Lease(storage, force=True):
        assert [claim.driver.host for claim in read_claims(storage)] == [Process.current().host]


def test_force_does_not_replace_a_visible_driver(folder: Storage) -> None:
    put(folder, replace(Process.current(), pid=os.getppid(), process_started=None))
    with (
        pytest.raises(UsageError, match=rf"\(process {os.getppid()}, since"),
        Lease(folder, force=True),
    ):
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"state": "strange"},
        {"state": ["released"]},
        {"fencing_token": "1"},
        {"driver": {"pid": 1}},
        None,
    ],
)
def test_damaged_claim_counts_until_it_expires(
    folder: Storage, change: dict[str, object] | None
) -> None:
    file = put(folder, elsewhere())
    file.write_text(
        "{" if change is None else json.dumps({**json.loads(file.read_text()), **change})
    )
    with (
        pytest.raises(UsageError, match=r"driven by process 0 on an unknown host .* --force-lease"),
        Lease(folder),
    ):
        pass
    os.utime(file, (0, 0))
    with Lease(folder):
        assert not file.exists()


def test_smaller_claim_wins_between_two_requests(
    folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, elsewhere(), "requested", name="0", fencing_token=0)
    monkeypatch.setattr("secrets.token_hex", lambda size: "5" * 2 * size)
    with (
        pytest.raises(
            UsageError, match=r"process .* on elsewhere started driving .* at the same time"
        ),
        Lease(folder),
    ):
        pass
    (folder / FOLDER).delete("0.json")
    put(folder, elsewhere(), "requested", name="9", fencing_token=0)
    monkeypatch.setattr(lease, "sleep", lambda seconds: (folder / FOLDER).delete("9.json"))
    with Lease(folder):
        pass


def test_driver_that_starts_meanwhile_is_seen(
    folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, elsewhere(), "requested", name="x", fencing_token=0)
    monkeypatch.setattr(lease, "sleep", lambda seconds: put(folder, elsewhere(), name="x"))
    with pytest.raises(UsageError, match="on elsewhere since"), Lease(folder):
        pass
    assert [claim.name for claim in read_claims(folder)] == ["x.json"]


def test_exactly_one_of_many_concurrent_drivers_starts(
    folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_WAIT_S", 0.001)
    drove: list[str] = []
    refused: list[str] = []
    together = threading.Barrier(6, timeout=30)
    all_asked = threading.Barrier(6, timeout=30)

    def ask() -> None:
        together.wait()
        try:
            with Lease(folder) as own:
                drove.append(own.name)
                all_asked.wait()
        except UsageError as error:
            refused.append(str(error))
            all_asked.wait()

    for round_number in (1, 2):
        put(folder, gone())
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(drove), len(refused)) == (round_number, 5 * round_number)


# A driver that was taken for dead


def test_replaced_driver_stops_writing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "run")
    with Lease(run.storage) as first:
        run.begin("name: run\n")
        (claim,) = read_claims(run.storage)
        put(run.storage, elsewhere(), name="other", fencing_token=2)
        first.check()
        with pytest.raises(
            LeaseLost, match=r"process \d+ on elsewhere has driven .* writes nothing more there"
        ):
            change(run, status="failed")
        with pytest.raises(LeaseLost):
            first.check()
        with pytest.raises(LeaseLost):
            run.begin("name: second\n", code="second = True\n")
        assert run.read_metadata().status == "running"
        assert run.storage.read("experiment.yaml") == b"name: run\n"
        assert not run.storage.exists("main.py")
    assert [claim.name for claim in read_claims(run.storage)] == ["other.json"], "nor its own claim"
    assert claim.name == first.name


def test_driver_does_not_recreate_a_removed_run(folder: Storage) -> None:
    with Lease(folder) as own:
        folder.delete("")
        with pytest.raises(LeaseLost, match="was removed"):
            own.renew()
    assert not folder.exists()


def test_heartbeats_are_sent_in_time(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    time = ManualClock()
    monkeypatch.setattr(lease, "Event", lambda: time)
    time.is_set = lambda: False  # type: ignore[attr-defined]
    with Lease(folder) as own:
        file = Path(str(folder), FOLDER, own.name)
        os.utime(file, (0, 0))
        time.advance(lease.HEARTBEAT_S - 1)
        assert file.stat().st_mtime == 0
        time.advance(1)
        assert file.stat().st_mtime > 0
        put(folder, elsewhere(), name="other", fencing_token=2)
        time.now += lease.HEARTBEAT_S
        with time._changed:
            time._changed.notify_all()
        for thread in threading.enumerate():
            if thread.name == "lease-heartbeat":
                thread.join(10)
        with pytest.raises(LeaseLost):
            own.check()


# What was being written


def test_unfinished_files_of_dead_processes_are_deleted(folder: Storage) -> None:
    dead = gone().pid
    living = os.getppid()
    left = {
        f".run.json.{dead}",
        f".run.json.{dead}.0123abcd",
        f"checkpoints/.index.json.{dead}",
        f"stats/attempt=0/.attempt.json.{dead}.89abcdef",
    }
    kept = {
        f".run.json.{living}",
        f"checkpoints/.index.json.{living}.0123abcd",
        "run.json",
        f"checkpoints/index.json.{dead}",
        ".hidden",
        "a.1",
    }
    for name in left | kept:
        folder.write(name, "x")
    with Lease(folder):
        there = {
            path.relative_to(str(folder)).as_posix()
            for path in Path(str(folder)).rglob("*")
            if path.is_file()
        }
        assert {name for name in there if not name.startswith(FOLDER)} == kept


def test_what_a_live_evaluation_on_another_machine_writes_is_kept(folder: Storage) -> None:
    """Its pid means nothing on this machine, but its own claim shows that it is alive."""
    dead = gone().pid
    put(folder / "evaluations/live", elsewhere())
    put(folder / "evaluations/dead", elsewhere(), age_s=2 * LEASE_TTL_S)
    for evaluation in ("live", "dead"):
        folder.write(f"evaluations/{evaluation}/predictions/.part.parquet.{dead}.0123abcd", "x")

    with Lease(folder):
        assert [*folder.list_unfinished()] == [
            f"evaluations/live/predictions/.part.parquet.{dead}.0123abcd"
        ]
