import os
import subprocess
import sys

import pytest

from orchestrator.process.child_signals import separate_children

PRINT_GROUP = [
    sys.executable,
    "-c",
    "import os, signal; print(os.getpgid(0) == os.getpid(), signal.getsignal(15) is signal.SIG_DFL)",
]

KILLED_WITH_TWO_CHILDREN = """
import multiprocessing, os, signal, time
from orchestrator.process.child_signals import for_children

@for_children
def handle(number, frame): ...

def fill(queue, parent):
    queue.put(bytes(2**20))  # more than a pipe holds
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, handle)
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(), context.Queue()]
    for queue in queues:
        context.Process(target=fill, args=(queue, os.getpid())).start()
    signal.pause()
"""


def test_children_end_after_a_kill_of_their_parent_though_nobody_reads_their_queues() -> None:
    command = [sys.executable, "-c", KILLED_WITH_TWO_CHILDREN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        for _ in range(2):
            assert parent.stdout.readline()
        parent.kill()
        # The children have the other end of the pipe, so this returns once both have ended.
        assert parent.stdout.read() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_children_are_separated_within_the_block_only() -> None:
    """Ray starts its processes with a `preexec_fn`, too."""
    outputs = []
    with separate_children():
        output = subprocess.check_output(PRINT_GROUP, preexec_fn=os.getpid, text=True)
        outputs.append(output.split())
    output = subprocess.check_output(PRINT_GROUP, preexec_fn=os.getpid, text=True)
    outputs.append(output.split())
    assert outputs == [["True", "True"], ["False", "True"]]
