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
