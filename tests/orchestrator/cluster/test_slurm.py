"""Jobs of Slurm, with stand-ins for its commands, which print what those of Slurm 22.05 printed;
the real ones are in tests/slurm."""

import re
import sys
from pathlib import Path

import pytest

from orchestrator.cluster import slurm as module
from orchestrator.cluster.slurm import SlurmJobs
from orchestrator.errors import RunError, UsageError

SHOWN = """JobId=8 JobName=two
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901753 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   RunTime=00:03:04 TimeLimit=00:20:00 TimeMin=N/A
   Command=(null)
   WorkDir=/tmp/two words
   Comment=hookyard run two.yaml notes='JobState=FAILED Restarts=7' --storage /runs --name two {space}
   StdErr={log}
   StdIn=/dev/null
   StdOut={log}
   Power=
"""


class Commands:
    """Stand-ins for Slurm's commands in a folder of the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "slurm 8.out"

    def make(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/bash\necho {name} "$@" >>{self.folder}/calls\n{script}\n')
        file.chmod(0o755)

    def say(
        self, state: str, code: str = "0:0", reason: str = "None", restarts: int = 0, after: int = 0
    ) -> None:
        """Let `scontrol` show this state, after a number of calls that show a running job."""
        values = {"reason": reason, "restarts": restarts, "log": self.log, "space": ""}
        running = SHOWN.format(**values, state="RUNNING", code="0:0")
        shown = SHOWN.format(**values, state=state, code=code)
        (self.folder / "running").write_text(running)
        (self.folder / "shown").write_text(shown)
        done = f"grep -c scontrol {self.folder}/calls"
        self.make(
            "scontrol",
            f"(( $({done}) > {after} )) && exec cat {self.folder}/shown || exec cat {self.folder}/running",
        )

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    return Commands(tmp_path)


def test_script_is_sent_and_the_number_of_the_job_returned(commands: Commands) -> None:
    commands.make("sbatch", f"cat >{commands.folder}/script; echo '12;cluster'")
    assert SlurmJobs().submit("#!/bin/bash\n") == "12"
    assert (commands.folder / "script").read_text() == "#!/bin/bash\n"
    assert commands.calls == ["sbatch --parsable"]


@pytest.mark.parametrize(
    ("state", "code", "status", "exit_code"),
    [
        ("PENDING", "0:0", "PENDING", None),
        ("CONFIGURING", "0:0", "PENDING", None),
        ("RUNNING", "0:0", "RUNNING", None),
        ("COMPLETING", "1:0", "RUNNING", None),
        ("COMPLETED", "0:0", "SUCCEEDED", 0),
        ("FAILED", "3:0", "FAILED", 3),
        ("FAILED", "130:0", "STOPPED", 130),
        ("CANCELLED", "0:15", "STOPPED", 0),
        ("TIMEOUT", "0:0", "FAILED", 0),
        ("NODE_FAIL", "1:0", "FAILED", 1),
        ("OUT_OF_MEMORY", "0:125", "FAILED", 0),
    ],
)
def test_states_of_slurm(
    commands: Commands, state: str, code: str, status: str, exit_code: int | None
) -> None:
    commands.say(state, code)
    found = SlurmJobs().status("8")
    assert (found.status, found.exit_code) == (status, exit_code)
    assert found.message.split(",")[0] == state


def test_status_says_what_slurm_says_and_the_command(commands: Commands) -> None:
    commands.say("PENDING", reason="BeginTime", restarts=2)
    status = SlurmJobs().status("8")
    assert status.message == "PENDING, BeginTime, 2 restarts"
    command = "hookyard run two.yaml notes='JobState=FAILED Restarts=7' --storage /runs --name two"
    assert status.entrypoint == command
    commands.say("FAILED", "0:9", reason="NonZeroExitCode")
    assert SlurmJobs().status("8").message == "FAILED, signal 9"


def test_log_is_empty_before_the_job_starts(commands: Commands) -> None:
    commands.say("PENDING")
    assert SlurmJobs().log("8") == ""
    commands.log.write_text("one\ntwo\n")
    assert SlurmJobs().log("8") == "one\ntwo\n"


def test_log_is_shown_until_the_job_ends_and_once(commands: Commands) -> None:
    commands.say("FAILED", "3:0", after=3)
    commands.log.write_text("one\n")
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if text == "one\n":
            with commands.log.open("a") as log:
                log.write("two\n")

    assert SlurmJobs().follow("8", show).exit_code == 3
    assert "".join(shown) == "one\ntwo\n"


def test_each_poll_asks_slurm_once(commands: Commands) -> None:
    commands.say("COMPLETED", after=3)
    assert SlurmJobs().follow("8", str).status == "SUCCEEDED"
    assert commands.calls == ["scontrol show job 8"] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a process")
def test_only_new_text_of_the_log_is_read(commands: Commands) -> None:
    size = 2**22
    commands.say("COMPLETED", after=9)
    commands.log.write_text("x" * size)
    shown: list[str] = []
    before = count_read_bytes()
    SlurmJobs().follow("8", shown.append)
    assert sum(map(len, shown)) == size
    assert count_read_bytes() - before < 2 * size


def count_read_bytes() -> int:
    """Number of bytes that this process has read from files and pipes."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_interactive_job_has_no_log(commands: Commands) -> None:
    """`scontrol` names the files only of a job with a script."""
    shown = re.sub(r"^ +Std.*\n", "", SHOWN, flags=re.MULTILINE)
    values = {"state": "RUNNING", "code": "0:0", "reason": "None", "restarts": 0, "space": ""}
    (commands.folder / "shown").write_text(shown.format(**values))
    commands.make("scontrol", f"cat {commands.folder}/shown")
    with pytest.raises(UsageError, match="job 8 has no log"):
        SlurmJobs().log("8")
    with pytest.raises(UsageError, match="job 8 has no log"):
        SlurmJobs().follow("8", str)
    assert SlurmJobs().status("8").status == "RUNNING"


def test_characters_that_are_written_in_pieces_are_shown_whole(commands: Commands) -> None:
    """The job is polled between the two bytes of a letter and of a line end, and ends within a
    letter."""
    commands.say("COMPLETED", after=3)
    commands.log.write_bytes(b"f\xc3")
    pieces = [b"\xbcr", b"\r", b"\n\xc3"]
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if pieces:
            with commands.log.open("ab") as log:
                log.write(pieces.pop(0))

    SlurmJobs().follow("8", show)
    assert shown == ["f", "ür", "", "\n\ufffd"]


def test_log_that_was_emptied_is_shown_from_its_start(commands: Commands) -> None:
    """As by a job that is requeued with `--open-mode=truncate`."""
    commands.say("COMPLETED", after=2)
    commands.log.write_text("first\n")
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        commands.log.write_text("2nd\n")

    SlurmJobs().follow("8", show)
    assert shown == ["first\n", "2nd\n", ""]


# What Slurm 22.05 says if its controller is away, slow, or restarts during the answer.
@pytest.mark.parametrize(
    "message",
    [
        "Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Communication connection failure",
        "Protocol authentication error",
    ],
)
def test_controller_that_does_not_answer_is_asked_again(commands: Commands, message: str) -> None:
    commands.say("COMPLETED")
    down = f"echo 'slurm_load_jobs error: {message}' >&2; exit 1"
    up = f"exec cat {commands.folder}/shown"
    commands.make(
        "scontrol", f"(( $(grep -c scontrol {commands.folder}/calls) > 2 )) || {{ {down}; }}; {up}"
    )
    with pytest.raises(RunError, match=re.escape(message)):
        SlurmJobs().status("8")
    assert SlurmJobs().follow("8", str).status == "SUCCEEDED"


def test_stop_signals_the_script_of_a_running_job(commands: Commands) -> None:
    commands.make("scancel", "")
    commands.say("RUNNING")
    SlurmJobs().stop("8")
    assert "scancel --batch --signal=TERM 8" in commands.calls


def test_stop_removes_a_job_from_the_queue(commands: Commands) -> None:
    commands.make("scancel", "")
    commands.say("CANCELLED")
    SlurmJobs().stop("8")
    assert commands.calls[0] == "scancel --state=PENDING 8"
    assert not any("--batch" in call for call in commands.calls)


def test_message_of_slurm_is_shown(commands: Commands) -> None:
    commands.make("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(UsageError, match=r"scontrol show job 9 failed: .*Invalid job id specified"):
        SlurmJobs().status("9")


def test_machine_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="sbatch is not on the PATH; use a login node"):
        SlurmJobs().submit("")
