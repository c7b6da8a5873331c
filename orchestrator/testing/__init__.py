"""Tools for tests of hooks and tasks: a ready state, a loop on the CPU, and a check of hooks.

Nothing that trains imports this package.
"""

from orchestrator.testing.check import check_hook as check_hook
from orchestrator.testing.check_failure import HookCheckFailed as HookCheckFailed
from orchestrator.testing.ready_state import ready_state as ready_state
from orchestrator.testing.small_loop import Screen as Screen
from orchestrator.testing.small_task import SmallTask as SmallTask
from orchestrator.testing.training import Trained as Trained
from orchestrator.testing.training import train as train
