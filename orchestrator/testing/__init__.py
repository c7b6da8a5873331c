"""Tools for tests of hooks and tasks: a ready state, a loop on the CPU, and a check of hooks.

Nothing that trains imports this package.
"""

from orchestrator.testing.check import check_hook as check_hook
from orchestrator.testing.training import Screen as Screen
from orchestrator.testing.training import SmallTask as SmallTask
from orchestrator.testing.training import Trained as Trained
from orchestrator.testing.training import ready_state as ready_state
from orchestrator.testing.training import train as train
from orchestrator.testing.watching import HookCheckFailed as HookCheckFailed
