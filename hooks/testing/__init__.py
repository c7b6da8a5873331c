"""For tests of hooks and tasks: a state that is ready, a loop on the CPU, and the check of a hook.

Stands above the loop, which no other part of `hooks` knows; nothing that trains imports it.
"""

from hooks.testing.check import check_hook as check_hook
from hooks.testing.failure import HookCheckFailed as HookCheckFailed
from hooks.testing.training import Screen as Screen
from hooks.testing.training import SmallTask as SmallTask
from hooks.testing.training import Trained as Trained
from hooks.testing.training import ready_state as ready_state
from hooks.testing.training import train as train
