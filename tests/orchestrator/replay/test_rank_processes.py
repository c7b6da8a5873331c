import os
import signal
from functools import partial
from pathlib import Path

import pytest

from orchestrator.loop.world import World
from orchestrator.replay.rank_processes import train_in_processes


def _interrupt(parent: int, folder: str, world: World) -> None:
    """Send the signals of Ctrl-C to both processes, and go on."""
    Path(folder, "pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(parent, signal.SIGINT)
    signal.sigwait([signal.SIGUSR1])


def test_interrupt_ends_the_ranks(tmp_path: Path) -> None:
    train = partial(_interrupt, os.getpid(), str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        train_in_processes(train, 1, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
