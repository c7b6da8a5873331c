"""For tests of hooks and tasks: a state that is ready, a loop on the CPU, and the check of a hook.

Stands above the loop, which no other part of `hooks` knows; nothing that trains imports it.
"""

from orchestrator.testing.check import check_hook as check_hook
from orchestrator.testing.failure import HookCheckFailed as HookCheckFailed
from orchestrator.testing.training import Screen as Screen
from orchestrator.testing.training import SmallTask as SmallTask
from orchestrator.testing.training import Trained as Trained
from orchestrator.testing.training import ready_state as ready_state
from orchestrator.testing.training import train as train
